// NumPy files: .npy (header and raw values), and .npz (a zip archive of them, read by libzip).
#include <zip.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <type_traits>

#include "bytes.h"
#include "files.h"
#include "hydrant/hydrant.h"
#include "messages.h"
#include "view.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays are copied from little-endian files"
#endif

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uintmax_t kMaxBytes = 4ULL << 30U;
constexpr std::size_t kMaxValues = 1U << 29U;  // 4 GiB of int64, the type of all integers
constexpr std::size_t kMaxRank = 8, kMaxHeaderBytes = 512;

InputError unreadable(const std::string& where, const std::string& why) {
  return InputError("cannot read " + where + ": " + why + "; expected a .npy or .npz file written by NumPy");
}

struct Header {
  std::string type;  // such as "<f4"
  std::vector<std::int64_t> shape;
  std::size_t values = 0;  // offset of the values
};

// The header: magic, version, length, and a dictionary in NumPy's fixed form.
Header read_header(std::string_view bytes, const std::string& where) {
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < 10) throw unreadable(where, "it has no .npy header");
  const std::size_t start = bytes[6] == 1 ? 10 : 12;  // later versions have a length of four bytes
  const std::uint64_t length = number_at(bytes, 8, start - 8, false);
  if (bytes.size() < start || length > bytes.size() - start) throw unreadable(where, "its header is truncated");
  static const std::regex form(
      R"(\{'descr': *'([^']*)', *'fortran_order': *(True|False), *'shape': *\(((?:\d{1,18}, *)*\d{0,18})\),? *\}\s*)");
  const std::string header(bytes.substr(start, static_cast<std::size_t>(length)));
  std::smatch parts;
  if (header.size() > kMaxHeaderBytes || !std::regex_match(header, parts, form))
    throw unreadable(where, "its header is " + cut(header));
  Header read{parts[1], {}, start + header.size()};
  std::istringstream sizes(parts[3]);
  for (std::int64_t size = 0; sizes >> size; sizes.ignore(1)) read.shape.push_back(size);
  if (read.shape.size() > kMaxRank) throw unreadable(where, "it has more than 8 axes");
  if (parts[2] == "True" && read.shape.size() > 1)
    throw unreadable(where, "it is in Fortran order; save numpy.ascontiguousarray of it");
  return read;
}

template <typename Stored, typename Value>
decltype(Tensor::data) values_as(std::string_view bytes, std::size_t count) {
  std::vector<Value> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    Stored value{};
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = static_cast<Value>(value);  // NOLINT(bugprone-signed-char-misuse): |i1 is a number
  }
  return values;
}

struct Half {
  std::uint16_t bits;
  explicit operator float() const { return half(bits); }
};

struct Kind {
  const char* type;
  std::size_t size;
  decltype(Tensor::data) (*read)(std::string_view bytes, std::size_t count);
};

constexpr Kind kKinds[] = {
    {"<f4", 4, values_as<float, float>},
    {"<f8", 8, values_as<double, float>},
    {"<f2", 2, values_as<Half, float>},
    {"<i8", 8, values_as<std::int64_t, std::int64_t>},
    {"<i4", 4, values_as<std::int32_t, std::int64_t>},
    {"<i2", 2, values_as<std::int16_t, std::int64_t>},
    {"|i1", 1, values_as<std::int8_t, std::int64_t>},
    {"<u4", 4, values_as<std::uint32_t, std::int64_t>},
    {"<u2", 2, values_as<std::uint16_t, std::int64_t>},
    {"|u1", 1, values_as<std::uint8_t, std::uint8_t>},
    {"|b1", 1, values_as<std::uint8_t, std::int64_t>},
};

Tensor read_array(std::string_view bytes, const std::string& where) {
  const Header header = read_header(bytes, where);
  const auto kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& each) { return header.type == each.type; });
  if (kind == std::end(kKinds))
    throw unreadable(where, "its type is " + cut(header.type) + ", not a type that fits float32, int64 or uint8");
  const std::size_t size = bytes.size() - header.values;
  const std::size_t count = count_of(header.shape);
  if (count > kMaxValues) throw unreadable(where, "it has more than 2^29 values; split it");
  if (count != size / kind->size || size % kind->size != 0) {
    throw unreadable(where, concat("it has ", size, " bytes of values, which do not fit its type ", header.type,
                                   " and shape ", shape_text(header.shape)));
  }
  return {header.shape, kind->read(bytes.substr(header.values), count)};
}

constexpr const char* kExamples = "x";  // inputs of labelled examples; other arrays are then ignored
constexpr const char* kLabels = "y";    // of any type

// One file of an archive; libzip checks the checksum at its end.
std::string read_entry(zip_t* archive, zip_uint64_t index, const zip_stat_t& facts, const std::string& where) {
  const std::unique_ptr<zip_file_t, Freed<zip_fclose>> entry(zip_fopen_index(archive, index, 0));
  if (!entry) throw unreadable(where, one_line(zip_strerror(archive)));
  std::string bytes;
  bytes.reserve(facts.size);
  std::array<char, 1U << 16U> block{};
  for (zip_int64_t got = 1; got > 0;) {
    got = zip_fread(entry.get(), block.data(), block.size());
    if (got < 0) throw unreadable(where, one_line(zip_file_strerror(entry.get())));
    bytes.append(block.data(), static_cast<std::size_t>(got));
    if (bytes.size() > facts.size) throw unreadable(where, "it is longer than its listed size");
  }
  return bytes;
}

Tensors read_archive(const fs::path& file) {
  int code = 0;
  const std::unique_ptr<zip_t, Freed<zip_discard>> archive(zip_open(file.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string why = one_line(zip_error_strerror(&error));
    zip_error_fini(&error);
    throw unreadable(file.string(), why);
  }
  const bool examples = zip_name_locate(archive.get(), (std::string(kExamples) + ".npy").c_str(), 0) >= 0;
  Tensors tensors;
  std::uintmax_t total = 0;
  for (zip_int64_t index = 0; index < zip_get_num_entries(archive.get(), 0); ++index) {
    zip_stat_t facts;
    zip_stat_init(&facts);
    const auto place = static_cast<zip_uint64_t>(index);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE;
    if (zip_stat_index(archive.get(), place, 0, &facts) != 0 || (facts.valid & kNeeded) != kNeeded)
      throw unreadable(file.string(), "its list of files is damaged");
    std::string name = facts.name;
    if (name.size() < 5 || !ends_with(name, ".npy")) throw unreadable(file.string(), "it contains " + cut(name));
    name.resize(name.size() - 4);
    if (examples ? name != kExamples : name == kLabels) continue;
    total += facts.size;
    if (total > kMaxBytes) throw unreadable(file.string(), "its arrays are larger than 4 GiB; split it");
    const std::string where = file.string() + ", array " + cut(name);
    tensors[name] = read_array(read_entry(archive.get(), place, facts, where), where);
  }
  if (tensors.empty()) throw unreadable(file.string(), "it has no arrays of inputs");
  return tensors;
}

}  // namespace

Tensors read_tensors(const fs::path& file) {
  std::uintmax_t size = 0;
  try {
    size = size_of(file);
  } catch (const std::invalid_argument& error) {
    throw unreadable(file.string(), error.what());
  }
  if (size > kMaxBytes) throw unreadable(file.string(), "it is larger than 4 GiB; split it");
  std::ifstream stream(file, std::ios::binary);
  std::string start(4, '\0');
  stream.read(start.data(), 4);
  if (!stream) throw unreadable(file.string(), "it is too short");
  if (start.substr(0, 2) == "PK") return read_archive(file);
  const auto bytes = bytes_of(file);
  if (!bytes) throw unreadable(file.string(), "check its permissions");
  return {{"", read_array(*bytes, file.string())}};
}

}  // namespace hydrant
