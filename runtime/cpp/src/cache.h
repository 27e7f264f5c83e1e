// A folder that belongs to the user, for files that can be made again, such as the engines that a provider compiles.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hydrant {

// A folder below `$XDG_CACHE_HOME/hydrant` or `~/.cache/hydrant` that only this user can write to; made where missing.
// Nothing where it cannot be made. Throws BackendError: it belongs to another user or lets others write.
std::optional<std::filesystem::path> private_folder(const std::vector<std::string>& names);

}  // namespace hydrant
