// Measurements: what the legs of this node's GPUs and NICs were measured to take, and the file that
// keeps them between sessions.
//
// A leg is keyed by its kind, the GPU, the NIC (or medium) and, for legs that cross to a peer, the
// peer's GPU or host. The file is TOML with a version; a file of another version, or damaged, is
// reported and treated as absent, never half used. Several workers may share it: save() adds to it
// under a lock of the file, and replaces it atomically.
// Not thread-safe. load() and save() block on the file system; save() waits a tenth of a second at
// most for a worker that holds the lock.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "p2p/planner/leg_model.h"
#include "p2p/planner/planner.h"

namespace rcuda::p2p {

struct LegKey {
  std::string kind;  // "copy_out", "copy_in", "device_copy", "wire", "gpudirect", "ipc", ...
  std::string gpu;   // UUID of the GPU, empty for host-only legs
  std::string nic;   // "mlx5_0", or the medium where no NIC is involved
  std::string peer;  // GPU UUID or host of the other end, empty for legs within the node
  auto operator<=>(const LegKey&) const = default;
};

class Measurements {
 public:
  void set(const LegKey& key, LegModel leg) { legs_[key] = std::move(leg); }
  // nullptr where the leg has not been measured.
  const LegModel* find(const LegKey& key) const;
  const std::map<LegKey, LegModel>& legs() const { return legs_; }
  // Takes over what `other` has, replacing what both have.
  void merge(const Measurements& other);

  static Result<Measurements> parse(std::string_view toml);
  std::string to_toml() const;

  // kNotFound where there is no file, or nothing in it.
  static Result<Measurements> load(const std::string& path);
  // Adds these to what the file has, replacing what both have. kTimeout while another process holds
  // the file's lock. Where the file system has no locks, what two workers save at the same time may
  // be one's alone.
  Status save(const std::string& path) const;

 private:
  Status replace(const std::string& path) const;

  std::map<LegKey, LegModel> legs_;
};

// Where the measurements of this user are kept: $RCUDA_P2P_CACHE, else p2p.toml in cache_folder()
// (common/base/cache_folder.h); empty where there is none.
std::string default_measurements_path();

// The two ends of a pair and what lies between them.
struct PairKey {
  std::string source_gpu;
  std::string destination_gpu;
  std::string source_host;
  std::string destination_host;
  std::string nic;     // the source's, or the medium where no NIC is involved
  std::string medium;  // with copies_by_cpu; empty: the plain one of the network
};
// Puts the model of one direction together from what both nodes measured. Legs that are missing
// stay empty.
PairModel pair_model(const Measurements& measurements, const PairKey& pair);

}  // namespace rcuda::p2p
