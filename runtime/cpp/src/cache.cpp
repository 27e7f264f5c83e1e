#include "cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "hydrant/hydrant.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

fs::path cache_folder() {
  const char* chosen = std::getenv("XDG_CACHE_HOME");  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  const char* home = std::getenv("HOME");              // NOLINT(concurrency-mt-unsafe): likewise
  if (chosen != nullptr && fs::path(chosen).is_absolute()) return fs::path(chosen) / "hydrant";
  return fs::path(home == nullptr ? "/nonexistent" : home) / ".cache" / "hydrant";
}

}  // namespace

std::optional<fs::path> private_folder(const std::vector<std::string>& names) {
  fs::path folder = cache_folder();
  std::error_code failed;
  fs::create_directories(folder.parent_path(), failed);
  for (std::size_t depth = 0; depth <= names.size(); ++depth) {
    if (depth > 0) folder /= names[depth - 1];
    struct stat status{};
    mkdir(folder.c_str(), S_IRWXU);
    if (stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
    if (status.st_uid != getuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      throw BackendError(folder.string() +
                         " belongs to another user or lets others write to it, and engines in it are run; make it your "
                         "own with chown and chmod 700, or set XDG_CACHE_HOME");
    }
  }
  return folder;
}

}  // namespace hydrant
