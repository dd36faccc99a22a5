// A value, or why there is none. For what a user can get wrong; the door maps it to
// INVALID_ARGUMENT.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace weft::text {

struct Error {
  std::string message;  // field, rule and value
};

template <typename T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT: meant to convert
  Result(Error error) : state_(std::move(error)) {}  // NOLINT: meant to convert

  bool ok() const { return std::holds_alternative<T>(state_); }
  const T& value() const { return std::get<T>(state_); }                        // only when ok()
  const std::string& error() const { return std::get<Error>(state_).message; }  // only when not

 private:
  std::variant<T, Error> state_;
};

}  // namespace weft::text
