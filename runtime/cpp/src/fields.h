// Strict decoding of the JSON objects in a bundle's files, by tables of their fields.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json.h"

namespace hydrant {

constexpr std::int64_t kSchema = 1;  // of every file of a bundle that names one

enum class Is {
  any,
  text,
  flag,
  whole,
  number,  // finite
  list,
  texts,
  object,
  object_or_null,
  figures,  // an object of finite numbers: notes for people
};

struct Field {
  const char* name = "";
  Is kind = Is::any;
  bool required = true;
  double least = -std::numeric_limits<double>::max(), most = std::numeric_limits<double>::max();  // of numbers
};

// A table of fields.
struct Fields {
  template <std::size_t Count>
  Fields(const Field (&fields)[Count]) : first(fields), count(Count) {}  // NOLINT(google-explicit-constructor)
  Fields(const std::vector<Field>& fields) : first(fields.data()), count(fields.size()) {}  // NOLINT

  const Field* begin() const { return first; }
  const Field* end() const { return first + count; }

  const Field* first;
  std::size_t count;
};

// Refuses an object with a field that is missing, unknown (unless `open`) or of another kind; `where` and `remedy`
// begin and end the message. Throws BundleError.
void check_fields(const Json& value, Fields fields, const std::string& where, const std::string& remedy,
                  bool open = false);

// Refuses a file of another schema, which hydrant `writer` (or null) wrote. Throws BundleError.
void check_schema(const Json& schema, const std::string& file, const Json& writer = nullptr);

}  // namespace hydrant
