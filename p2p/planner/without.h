// The debugging switch RCUDA_P2P_WITHOUT: turns mechanisms of the engine off, to find out what each
// of them is worth (bench/p2p/ablation.py). A list separated by commas:
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

// nullopt: the list names something else.
std::optional<Without> parse_without(std::string_view list);

// What the environment says, read at the first call. A list that is wrong is logged and turns
// nothing off.
const Without& without();

}  // namespace rcuda::p2p
