// A finding of rcuda-doctor: one line, with the remedy if something is wrong.
#pragma once

#include <string>
#include <vector>

namespace rcuda::doctor {

enum class Verdict { kGood, kNote, kWarning, kBad };

struct Finding {
  Verdict verdict = Verdict::kGood;
  std::string what;
  std::string remedy;  // a command or a setting; empty when nothing is to be done
};

using Findings = std::vector<Finding>;

}  // namespace rcuda::doctor
