// The debugging switch RCUDA_P2P_WITHOUT. It turns mechanisms of the engine off, to measure the
// worth of each (bench/p2p/ablation.py). Its value is a list separated by commas:
//
//   persisted   measurements are neither read from the file nor written to it
//   prober      no leg is measured; a leg in the file still counts
//
// Any thread. Nothing blocks.
#pragma once

#include <optional>
#include <string_view>

namespace rcuda::p2p {

struct Without {
  bool persisted = false;
  bool prober = false;
};

// nullopt: the list has an unknown name.
std::optional<Without> parse_without(std::string_view list);

// The setting of the environment, read at the first call. A wrong list is logged and turns nothing
// off.
const Without& without();

}  // namespace rcuda::p2p
