// Status and Result<T>: how functions of this project report failure.
//
// A Status is cheap when ok. An error carries one of our codes, optionally the CUresult or errno
// that caused it, and a context: one sentence that names the cause and, if there is one, the
// remedy. The function that detects an error fills the context; callers may add context. Only the
// function that handles the error logs it. Nothing here throws or blocks. Values are as thread-safe
// as any value type.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace rcuda {

enum class Code : int {
  kOk = 0,
  kInvalidArgument,  // the caller's value is wrong
  kNotFound,
  kOutOfMemory,
  kUnsupported,  // well-formed, but not available in this build, on this host or medium
  kUnavailable,  // the peer cannot be reached, refused, or is gone
  kTimeout,
  kProtocol,  // the peer sent something invalid
  kCuda,      // a driver call failed; see cuda()
  kSystem,    // a system call failed; see sys_errno()
  kInternal,
  kDenied,  // refused, for example a user, a proof of identity, or a file that others can access
};

const char* to_string(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string context) : code_(code), context_(std::move(context)) {}

  // A failed driver call: `cuda` is the CUresult as an int, so that this header needs no cuda.h.
  static Status from_cuda(int cuda, std::string context);
  // A failed system call; takes errno's value and appends its text to the context, and the remedy
  // if the cause is a limit (limit_remedy.h).
  static Status from_errno(int sys_errno, std::string context);

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  int cuda() const { return cuda_; }            // 0 unless code() is kCuda
  int sys_errno() const { return sys_errno_; }  // 0 unless code() is kSystem
  const std::string& context() const { return context_; }

  // Puts `outer` in front of an error's context: "outer: context".
  Status with_context(const std::string& outer) &&;
  // "unavailable: node1:8308 refused the connection"
  std::string message() const;

 private:
  Code code_ = Code::kOk;
  int cuda_ = 0;
  int sys_errno_ = 0;
  std::string context_;
};

// A value, or the Status that explains why the value is missing.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  const Status& error() const { return status_; }

  // Adds context to the error, as Status::with_context() does.
  Result with_context(const std::string& outer) && {
    status_ = std::move(status_).with_context(outer);
    return std::move(*this);
  }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace rcuda

// Returns from the enclosing function when `expr` (a Status) is an error.
#define RCUDA_RETURN_IF_ERROR(expr)                                    \
  do {                                                                 \
    if (::rcuda::Status status_macro_ = (expr); !status_macro_.ok()) { \
      return status_macro_;                                            \
    }                                                                  \
  } while (0)

// RCUDA_ASSIGN_OR_RETURN(declaration, expression): declares a variable with the value of the
// expression's Result or CudaResult. Without a value, makes the calling function return the error.
#define RCUDA_ASSIGN_OR_RETURN(declaration, expression) \
  RCUDA_ASSIGN_OR_RETURN_AS(declaration, expression, __LINE__)
#define RCUDA_ASSIGN_OR_RETURN_AS(declaration, expression, line) \
  RCUDA_ASSIGN_OR_RETURN_IN(declaration, expression, line)
#define RCUDA_ASSIGN_OR_RETURN_IN(declaration, expression, line) \
  auto result_of_##line = (expression);                          \
  if (!result_of_##line) return result_of_##line.error();        \
  declaration = *std::move(result_of_##line)
