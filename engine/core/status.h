// A result with a canonical code (the numbers are gRPC's) and a sentence of rule and value.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace weft {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

struct Status {
  Code code = Code::kOk;
  std::string message;
  int64_t retry_after_ms = 0;  // when asking again may do; 0: nobody knows

  bool ok() const { return code == Code::kOk; }
  static Status Ok() { return {}; }
  static Status Invalid(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }
};

}  // namespace weft
