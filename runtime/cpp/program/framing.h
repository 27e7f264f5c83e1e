// Whether a request's headers say one thing alone of where it ends and whom it is for. One that does not may be taken
// for two requests here and for one by a proxy in front, or the other way round.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

class Framing {
 public:
  // A header, as it came; its bytes outlive this.
  //   folded  whether it goes on in the next line, which some take for a header, and others for a part of it
  void add(std::string_view name, std::string_view value, bool folded) noexcept;

  // What is wrong with them, and what was expected; nothing where all is well.
  //   named  whether a request must say whom it is for, as those of HTTP/1.1 must
  std::optional<std::string> wrong(bool named) const;

 private:
  std::optional<std::string_view> odd_;     // the first name that is none
  std::optional<std::string_view> folded_;  // the first that goes on
  std::string_view coding_;                 // of the body
  std::size_t hosts_ = 0, lengths_ = 0, codings_ = 0;
};

}  // namespace hydrant
