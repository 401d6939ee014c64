// An environment variable that is set while the object exists. Not thread-safe, like setenv().
#pragma once

#include <cstdlib>

namespace rcuda::test {

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace rcuda::test
