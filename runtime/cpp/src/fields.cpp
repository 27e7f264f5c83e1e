#include "fields.h"

#include <algorithm>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

bool is_within(const Json& value, const Field& field) {
  const auto amount = number(value);
  return amount && *amount >= field.min && *amount <= field.max;
}

bool is_string(const Json& value) { return value.is_string(); }

bool is_number(const Json& value) { return number(value).has_value(); }

bool all_fit(const Json& values, bool (*fits)(const Json&)) { return std::all_of(values.begin(), values.end(), fits); }

struct KindCheck {
  const char* name;
  bool (*fits)(const Json& value, const Field& field);
};

constexpr KindCheck kChecks[] = {
    {"anything", [](auto&, auto&) { return true; }},
    {"a string", [](auto& value, auto&) { return value.is_string(); }},
    {"true or false", [](auto& value, auto&) { return value.is_boolean(); }},
    {"a whole number in range",
     [](auto& value, auto& field) { return integer(value, INT64_MIN, INT64_MAX) && is_within(value, field); }},
    {"a finite number in range", is_within},
    {"a list", [](auto& value, auto&) { return value.is_array(); }},
    {"a list of strings", [](auto& value, auto&) { return value.is_array() && all_fit(value, is_string); }},
    {"an object", [](auto& value, auto&) { return value.is_object(); }},
    {"an object or null", [](auto& value, auto&) { return value.is_object() || value.is_null(); }},
    {"an object of finite numbers", [](auto& value, auto&) { return value.is_object() && all_fit(value, is_number); }}};

const KindCheck& check_of(const Field& field) { return kChecks[static_cast<std::size_t>(field.kind)]; }

// Returns true for a version such as "1.4.0rc1".
bool is_version(const std::string& text) {
  constexpr const char* kCharacters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+-";
  return !text.empty() && text.size() <= 30 && text.front() >= '0' && text.front() <= '9' &&
         text.find('.') != std::string::npos && text.find_first_not_of(kCharacters) == std::string::npos;
}

}  // namespace

void check_fields(const Json& value, Fields fields, const std::string& where, const std::string& remedy, bool open) {
  const auto error = [&](const std::string& what) { return BundleError(where + what + "; " + remedy); };
  if (!value.is_object()) throw error(std::string(" is a JSON ") + value.type_name() + "; expected an object");
  for (const Field& field : fields) {
    const auto member = value.find(field.name);
    if (member == value.end() && field.required) throw error(std::string(" has no ") + field.name);
    if (member != value.end() && !check_of(field).fits(*member, field))
      throw error(std::string(" has ") + field.name + " = " + shown(*member) + "; expected " + check_of(field).name);
  }
  for (const auto& [name, each] : value.items()) {
    const auto is_name = [&, key = name](const Field& field) { return key == field.name; };
    if (!open && std::none_of(fields.begin(), fields.end(), is_name)) throw error(" has the unknown key " + cut(name));
  }
}

void check_schema(const Json& schema, const std::string& file, const Json& writer) {
  if (integer(schema, kSchema, kSchema)) return;
  std::string remedy = "make it again";
  if (integer(schema, kSchema + 1, INT64_MAX)) {
    const std::string version =
        writer.is_string() && is_version(writer.get<std::string>()) ? writer.get<std::string>() : "";
    remedy = version.empty() ? "a newer hydrant wrote it: build the latest C++ runner"
                             : "hydrant " + version + " wrote it: build the C++ runner of that version or newer";
  }
  throw BundleError(concat(file, " has schema ", shown(schema), "; this hydrant reads schema ", kSchema, "; ", remedy));
}

}  // namespace hydrant
