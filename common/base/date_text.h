// A point in time as text, in UTC: "2026-03-01T12:00:00Z". Any thread.
#pragma once

#include <ctime>
#include <string>

namespace rcuda {

// Returns an empty text for a time whose year does not fit.
inline std::string date_text(std::time_t time) {
  std::tm parts{};
  char text[64] = "";
  if (::gmtime_r(&time, &parts)) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace rcuda
