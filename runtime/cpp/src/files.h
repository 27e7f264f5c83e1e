// Reading a file whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace hydrant {

// The bytes of a file; nothing where it cannot be opened, or reading fails on the way.
std::optional<std::string> bytes_of(const std::filesystem::path& file);

}  // namespace hydrant
