// Randomly damaged files fail with hydrant's errors, never with a crash or another exception.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "../src/engine_profiles.h"
#include "../src/json.h"
#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

std::string damaged(std::string bytes, std::mt19937& random) {
  const auto any = [&](std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random); };
  const std::size_t kind = any(3);
  if (kind == 0) return bytes.substr(0, any(bytes.size()));
  for (std::size_t i = 0; i <= any(kind == 1 ? 3 : 40); ++i) bytes[any(bytes.size())] = static_cast<char>(any(256));
  return bytes;
}

// Reads damaged copies of a file; each gives a result or an Error.
template <typename Read>
void torture(const fs::path& file, int rounds, const Read& reader) {
  const std::string whole = content(file);
  const fs::path copy = fs::temp_directory_path() /
                        ("hydrant-hostile-" + std::to_string(std::random_device()()) + file.extension().string());
  std::mt19937 random(0);  // NOLINT(bugprone-random-generator-seed): the same damage every time
  int rejected = 0;
#ifdef HYDRANT_SANITIZED  // slow; half of them suffice
  rounds /= 2;
#endif
  for (int round = 0; round < rounds; ++round) {
    write(copy, damaged(whole, random));
    try {
      reader(copy);
    } catch (const Error& error) {
      check(std::string(error.what()).size() > 20, "a message is too short: ", error.what());
      ++rejected;
    }
  }
  fs::remove(copy);
  check(rejected > 0, file, ": no copy failed");
  std::cout << file.filename() << ": " << rejected << " of " << rounds << " damaged copies rejected\n";
}

}  // namespace

void hostile(const fs::path& folder) {
  torture(folder / "bert" / "inputs.npz", 400, [](const fs::path& file) { read_tensors(file); });
  torture(folder / "vit" / "inputs.npz", 200, [](const fs::path& file) { read_tensors(file); });
  for (const char* name : {"first.png", "palette.png", "turned.png", "turned6.jpg", "progressive.jpg", "grey.jpg"}) {
    torture(folder / "vit-images" / "images" / name, 300, [](const fs::path& file) { read_image(file); });
  }
  torture(folder / "bert" / "engines" / "fits" / "engines" / "tensorrt-fp32.json", 600, [](const fs::path& file) {
    try {
      const EngineFile facts = EngineFile::of(parse_json(content(file)), file.string());
      Profiles(facts.profiles, {}).parts(70, 9);
    } catch (const std::invalid_argument& error) {
      throw BundleError(file.string() + " is no JSON: " + error.what());
    }
  });
  const fs::path array = fs::temp_directory_path() / ("hydrant-" + std::to_string(std::random_device()()) + ".npy");
  const std::string header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n";
  write(array, std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header + "123456789012");
  torture(array, 600, [](const fs::path& file) { read_tensors(file); });
  fs::remove(array);
  const fs::path bundle = fs::temp_directory_path() / ("hydrant-hostile-" + std::to_string(std::random_device()()));
  fs::create_directories(bundle);
  torture(folder / "bert" / "bundle" / "hydrant.json", 300, [&](const fs::path& file) {
    fs::copy_file(file, bundle / "hydrant.json", fs::copy_options::overwrite_existing);
    const Predictor predictor(bundle);
  });
  fs::remove_all(bundle);
}

}  // namespace hydrant::tests
