#include "framing.h"

#include <algorithm>

#include "../src/messages.h"
#include "ascii.h"

namespace hydrant {
namespace {

// A character that names of headers consist of (RFC 9110, 5.6.2).
bool is_of_name(char each) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const char low = lowered(each);
  return (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9') || kMarks.find(each) != std::string_view::npos;
}

}  // namespace

void Framing::add(std::string_view name, std::string_view value, bool folded) noexcept {
  if (!odd_ && (name.empty() || !std::all_of(name.begin(), name.end(), is_of_name))) odd_ = name;
  if (!folded_ && folded) folded_ = name;
  if (is_alike(name, "Host")) ++hosts_;
  if (is_alike(name, "Content-Length")) ++lengths_;
  if (is_alike(name, "Transfer-Encoding")) {
    ++codings_;
    coding_ = value;
  }
}

std::optional<std::string> Framing::wrong(bool named) const {
  if (folded_) return "the header " + cut(*folded_) + " goes on in the next line; expected each header on one line";
  if (odd_)
    return "a header is called " + cut(*odd_) + "; expected a name of letters, digits and marks, without spaces";
  if (named && hosts_ == 0) return "the request has no header called Host; expected one";
  if (hosts_ > 1) return "the request has " + std::to_string(hosts_) + " headers called Host; expected one";
  if (lengths_ + codings_ > 1)
    return "the request says more than once how long it is; expected Content-Length, or Transfer-Encoding, once";
  if (codings_ == 1 && !is_alike(coding_, "chunked"))
    return "the request has Transfer-Encoding " + cut(coding_) + "; expected chunked, or Content-Length instead";
  return std::nullopt;
}

}  // namespace hydrant
