// hydrant-replay BUNDLE CORPUS MUTATIONS [TARGET …]: runs targets on their corpus and on reproducible damaged copies,
// without a fuzzer. Exit status 1: findings. After a crash, the last line names the file.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <random>
#include <set>

#include "../src/files.h"
#include "hydrant/hydrant.h"
#include "targets.h"

namespace fs = std::filesystem;

namespace hydrant::fuzz {
namespace {

constexpr double kMaxSeconds = 2;

// Difficult inputs for parsers.
const std::vector<std::string>& difficult_words() {
  static const std::vector<std::string> words{"null",
                                              "-1",
                                              "0",
                                              "1e999",
                                              "1e300",
                                              "NaN",
                                              "1.5",
                                              "[]",
                                              "{}",
                                              "\"\"",
                                              "../x",
                                              "\"\\ud800\"",
                                              "\xff\xfe",
                                              "\r\n",
                                              std::string(1, '\0'),
                                              std::string(40, '9'),
                                              std::string(200, '['),
                                              "18446744073709551615",
                                              "-9223372036854775808",
                                              "\xff\xff\xff\xff"};
  return words;
}

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  std::string of(std::string bytes) {
    for (std::size_t changes = 1 + any(3); changes > 0; --changes) change(bytes);
    return bytes;
  }

 private:
  std::size_t any(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }

  void change(std::string& bytes) {
    const std::size_t at = any(bytes.size() + 1), size = std::min(any(64), bytes.size() - at);
    const std::string& word = difficult_words()[any(difficult_words().size())];
    switch (any(6)) {
      case 0:
        bytes.erase(at, size);
        break;
      case 1:
        bytes.insert(at, word);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, size));
        break;
      case 3:
        value(bytes, at, word);
        break;
      case 4:
        bytes.resize(at);
        break;
      default:
        if (at < bytes.size()) bytes[at] = static_cast<char>(any(256));
    }
  }

  // Replaces the value after a colon.
  static void value(std::string& bytes, std::size_t from, const std::string& word) {
    const std::size_t colon = bytes.find(": ", from);
    if (colon == std::string::npos) return;
    const std::size_t end = std::min(bytes.find_first_of(",]}\n", colon), bytes.size());
    bytes.replace(colon + 2, end - colon - 2, word);
  }

  std::mt19937 random_;
};

// Returns true if a target accepts or rejects the bytes in time; `refusal` is the reason for rejecting.
bool passes(const Target& target, const std::string& bytes, std::string& refusal) {
  const std::clock_t started = std::clock();  // processor time, independent of other load
  try {
    target.read(bytes);
  } catch (const Error& error) {
    refusal = error.what();
  } catch (const std::exception& error) {
    std::cout << "  found: " << error.what() << '\n';
    return false;
  }
  const double took = static_cast<double>(std::clock() - started) / CLOCKS_PER_SEC;
  if (took > kMaxSeconds) std::cout << "  found: it took " << took << " s\n";
  return took <= kMaxSeconds;
}

// Returns true for files that must be rejected, by name.
bool is_refused(const fs::path& file) { return file.filename().string().rfind("refused-", 0) == 0; }

std::size_t replay(const Target& target, const fs::path& corpus, unsigned mutations) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus / target.name)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string ignored;
  std::size_t findings = passes(target, "", ignored) ? 0 : 1, runs = 1;
  Damage damage(7);
  for (const fs::path& file : files) {
    const auto whole = bytes_of(file);
    if (!whole) throw InputError("cannot read " + file.string());
    std::cout << target.name << ' ' << file.filename().string() << std::endl;
    const std::size_t copies = 1 + mutations / files.size();
    for (std::size_t copy = 0; copy <= copies; ++copy, ++runs) {
      const std::string bytes = copy == 0 ? *whole : damage.of(*whole);
      std::string refusal;
      const bool passed = passes(target, bytes, refusal);
      if (copy == 0 && passed && refusal.empty() == is_refused(file)) {  // its damaged copies would test nothing
        std::cout << "  found: " << (refusal.empty() ? "it is accepted" : "it is rejected: " + refusal) << '\n';
        ++findings;
      }
      if (passed) continue;
      const std::string file_name = std::string("found-") + target.name + "-" + std::to_string(++findings);
      std::ofstream(file_name, std::ios::binary) << bytes;
      std::cout << "  saved as " << file_name << '\n';
    }
  }
  std::cout << target.name << ": " << runs << " inputs, " << findings << " findings\n";
  return findings;
}

}  // namespace
}  // namespace hydrant::fuzz

#ifdef HYDRANT_SANITIZED
// Options of the address sanitizer: an allocation of more than a gigabyte is a finding, even if unused.
extern "C" const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024"; }  // NOLINT: as above
#endif

// NOLINTNEXTLINE(bugprone-exception-escape): what cannot be read ends the test
int main(int count, char** words) {
  if (count < 4) {
    std::cerr << "usage: hydrant-replay BUNDLE CORPUS MUTATIONS [TARGET ...]\n";
    return 2;
  }
  hydrant::fuzz::use_bundle(words[1]);
  const std::set<std::string> wanted(words + 4, words + count);
  std::size_t findings = 0;
  for (const hydrant::fuzz::Target& target : hydrant::fuzz::targets()) {
    if (wanted.empty() || wanted.count(target.name) > 0)
      findings += hydrant::fuzz::replay(target, words[2], static_cast<unsigned>(std::stoul(words[3])));
  }
  return findings == 0 ? 0 : 1;
}
