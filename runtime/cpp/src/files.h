// Whole files, and SHA-256 from OpenSSL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

// Deleter of a C library's objects.
template <auto Free>
struct Freed {
  template <typename Type>
  void operator()(Type* pointer) const {
    Free(pointer);
  }
};

// The bytes of a file; nothing if it cannot be opened or read.
std::optional<std::string> bytes_of(const std::filesystem::path& file);

// The size of a file in bytes. Throws std::invalid_argument: missing, or not a regular file.
std::uintmax_t size_of(const std::filesystem::path& file);

// Returns true if a folder holds a Hub repository, whose folder `hydrant` is the bundle.
bool is_repository(const std::filesystem::path& folder);

// Returns true if a file of a bundle CACHE/models--USER--REPO/snapshots/REVISION/NAME, a download in a Hub cache, is a
// link into the blobs of its repository, or into those that all repositories share.
bool is_hub_blob(const std::filesystem::path& file, const std::filesystem::path& bundle);

// Returns true if a file is inside a folder, after links are resolved.
bool is_inside(const std::filesystem::path& file, const std::filesystem::path& folder);

// Hexadecimal digests of bytes, and of a file. Throws InputError: it cannot be read.
std::string sha256(std::string_view bytes);
std::string sha256_of(const std::filesystem::path& file);

}  // namespace hydrant
