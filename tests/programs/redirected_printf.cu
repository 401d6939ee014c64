// Where the output of a kernel's printf goes if the program has redirected its stdout, and whether
// it gets there without a flush by the program.
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

namespace {

std::FILE* report = nullptr;  // the program's original stdout, for the test's own output
int original = -1;            // its descriptor

__global__ void say(int number) { printf("from the device %d\n", number); }

void print_from_kernel(int number) {
  say<<<1, 1>>>(number);
  FINISH();
}

std::string temporary_file() {
  char path[] = "/tmp/redirected-printf-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  close(file);
  return path;
}

std::string contents(const std::string& path) {
  std::string text(4096, '\0');
  const int file = open(path.c_str(), O_RDONLY);
  CHECK(file >= 0);
  const ssize_t bytes = read(file, &text[0], text.size());
  close(file);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  for (char& c : text) {
    if (c == '\n') c = '|';
  }
  return text;
}

// Prints the contents of the file before and after the stream is flushed.
void tell(const char* how, const std::string& path, std::FILE* stream) {
  const std::string before = contents(path);
  if (stream) std::fflush(stream);
  std::fprintf(report, "%s: \"%s\", and flushed: \"%s\"\n", how, before.c_str(),
               contents(path).c_str());
}

void point_stdout_at(const std::string& path) {
  std::fflush(stdout);
  const int file = open(path.c_str(), O_WRONLY | O_TRUNC | O_APPEND);
  CHECK(file >= 0 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
  close(file);
}

void restore() {
  std::fflush(stdout);
  CHECK(dup2(original, STDOUT_FILENO) == STDOUT_FILENO);
}

void by_dup2(const std::string& path) {
  point_stdout_at(path);
  std::printf("before,");
  print_from_kernel(1);
  tell("dup2", path, stdout);
  restore();
}

void by_buffer(const std::string& path) {
  static char buffer[4096];
  for (const int mode : {_IOFBF, _IOLBF, _IONBF}) {
    point_stdout_at(path);
    CHECK(std::setvbuf(stdout, mode == _IONBF ? nullptr : buffer, mode, sizeof buffer) == 0);
    print_from_kernel(2);
    tell(mode == _IOFBF   ? "full buffer"
         : mode == _IOLBF ? "line buffer"
                          : "no buffer",
         path, stdout);
    restore();
  }
}

// Descriptor 1 is closed, so the text is lost. The next file that is opened must not get it.
void by_close(const std::string& path) {
  std::fflush(stdout);
  close(STDOUT_FILENO);
  print_from_kernel(3);
  std::fflush(stdout);
  std::clearerr(stdout);
  const int file = open(path.c_str(), O_WRONLY | O_TRUNC);
  CHECK(file == STDOUT_FILENO);
  tell("closed descriptor", path, stdout);
  restore();
}

// The C library lets a program assign to stdout.
void by_assignment(const std::string& path) {
  std::FILE* const before = stdout;
  std::fflush(before);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  CHECK(file != nullptr);
  point_stdout_at(path + ".1");
  stdout = file;
  print_from_kernel(4);
  tell("another stream, its file", path, file);
  tell("another stream, descriptor 1", path + ".1", before);
  stdout = before;
  std::fclose(file);
  restore();
}

void by_freopen(const std::string& path) {
  std::fflush(stdout);
  CHECK(std::freopen(path.c_str(), "w", stdout) != nullptr);
  print_from_kernel(5);
  tell("freopen", path, stdout);
  CHECK(dup2(original, fileno(stdout)) >= 0);
}

}  // namespace

int main() {
  original = dup(STDOUT_FILENO);
  report = fdopen(dup(STDOUT_FILENO), "w");
  CHECK(report != nullptr);
  std::setvbuf(report, nullptr, _IONBF, 0);
  const std::string path = temporary_file();
  close(open((path + ".1").c_str(), O_WRONLY | O_CREAT, 0600));
  CUDA(cudaFree(nullptr));
  by_dup2(path);
  by_close(path);
  by_assignment(path);
  by_freopen(path);
  by_buffer(path);
  unlink(path.c_str());
  unlink((path + ".1").c_str());
}
