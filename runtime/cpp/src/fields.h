// Strict validation of JSON objects in a bundle's files, by tables of fields.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json.h"

namespace hydrant {

constexpr std::int64_t kSchema = 1;  // of all files with a schema

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
  metrics,  // an object of finite numbers
};

struct Field {
  const char* name = "";
  Is kind = Is::any;
  bool required = true;
  double min = -std::numeric_limits<double>::max(), max = std::numeric_limits<double>::max();  // of numbers
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

// Throws BundleError, "`where` …; `remedy`": a field is missing, unknown (unless `open`) or of another kind.
void check_fields(const Json& value, Fields fields, const std::string& where, const std::string& remedy,
                  bool open = false);

// Throws BundleError: another schema; `writer` is the version of hydrant that wrote it, or null.
void check_schema(const Json& schema, const std::string& file, const Json& writer = nullptr);

}  // namespace hydrant
