#include "files.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "hydrant/hydrant.h"

namespace fs = std::filesystem;

namespace hydrant {

namespace {

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new()) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void add(const void* bytes, std::size_t size) { check(EVP_DigestUpdate(context_.get(), bytes, size) == 1); }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned int size = 0;
    check(EVP_DigestFinal_ex(context_.get(), bytes.data(), &size) == 1);
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += kDigits[bytes[i] >> 4U];
      text += kDigits[bytes[i] & 15U];
    }
    return text;
  }

 private:
  static void check(bool done) {
    if (!done) throw Error("OpenSSL cannot compute SHA-256; its digest provider is missing: reinstall OpenSSL");
  }

  std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>> context_;
};

// Calls `take` with the blocks of a file; false if it cannot be opened or read.
template <typename Take>
bool read_blocks(const fs::path& file, const Take& take) {
  std::ifstream stream(file, std::ios::binary);
  std::vector<char> block(1U << 18U);
  while (stream) {
    stream.read(block.data(), static_cast<std::streamsize>(block.size()));
    take(block.data(), static_cast<std::size_t>(stream.gcount()));
  }
  return stream.eof();
}

// Returns true if a file, after links are resolved, is inside a folder whose path has none.
bool leads_into(const fs::path& file, const fs::path& folder) {
  std::error_code failed;
  const fs::path inner = fs::canonical(file, failed);
  return !failed && std::mismatch(folder.begin(), folder.end(), inner.begin(), inner.end()).first == folder.end();
}

}  // namespace

std::optional<std::string> bytes_of(const fs::path& file) {
  std::string bytes;
  if (!read_blocks(file, [&](const char* block, std::size_t size) { bytes.append(block, size); })) return std::nullopt;
  return bytes;
}

std::uintmax_t size_of(const fs::path& file) {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  if (fs::exists(status) && !fs::is_regular_file(status)) throw std::invalid_argument("it is a folder, pipe or device");
  const std::uintmax_t size = fs::file_size(file, failed);
  if (failed) throw std::invalid_argument(failed.message());
  return size;
}

bool is_inside(const fs::path& file, const fs::path& folder) {
  std::error_code failed;
  const fs::path outer = fs::canonical(folder, failed);
  return !failed && leads_into(file, outer);
}

bool is_repository(const fs::path& folder) {
  std::error_code failed;
  return fs::is_directory(folder / "onnx", failed) ||
         fs::canonical(folder, failed).parent_path().filename() == "snapshots";
}

bool is_hub_blob(const fs::path& file, const fs::path& bundle) {
  std::error_code failed;
  const fs::path snapshots = fs::canonical(bundle, failed).parent_path().parent_path();
  const fs::path root = snapshots.parent_path();
  return fs::is_regular_file(file, failed) && snapshots.filename() == "snapshots" &&
         root.filename().string().rfind("models--", 0) == 0 &&
         (leads_into(file, root / "blobs") || leads_into(file, root.parent_path() / "blobs"));
}

std::string sha256(std::string_view bytes) {
  Digest digest;
  digest.add(bytes.data(), bytes.size());
  return digest.hex();
}

std::string sha256_of(const std::filesystem::path& file) {
  Digest digest;
  if (!read_blocks(file, [&](const char* block, std::size_t size) { digest.add(block, size); }))
    throw InputError("cannot read " + file.string() + "; check its permissions");
  return digest.hex();
}

}  // namespace hydrant
