// SHA-256 by OpenSSL.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace hydrant {

// Hexadecimal digest of bytes.
std::string sha256(std::string_view bytes);

// Hexadecimal digest of a file, read in blocks. Throws InputError: it cannot be read.
std::string sha256_of(const std::filesystem::path& file);

}  // namespace hydrant
