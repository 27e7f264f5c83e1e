// Reading a file whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hydrant {

// The bytes of a file; nothing where it cannot be opened, or reading fails on the way.
std::optional<std::string> bytes_of(const std::filesystem::path& file);

// The size of a file, bytes. Throws std::invalid_argument: there is none, or a folder, pipe or device in its place,
// which would be waited for, or has no end.
std::uintmax_t size_of(const std::filesystem::path& file);

}  // namespace hydrant
