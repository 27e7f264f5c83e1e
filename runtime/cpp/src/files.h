// Reading a file whole, and SHA-256 by OpenSSL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

// The bytes of a file; nothing where it cannot be opened, or reading fails on the way.
std::optional<std::string> bytes_of(const std::filesystem::path& file);

// The size of a file, bytes. Throws std::invalid_argument: it is missing, or a folder, pipe or device.
std::uintmax_t size_of(const std::filesystem::path& file);

// Hexadecimal digest of bytes.
std::string sha256(std::string_view bytes);

// Hexadecimal digest of a file, read in blocks. Throws InputError: it cannot be read.
std::string sha256_of(const std::filesystem::path& file);

}  // namespace hydrant
