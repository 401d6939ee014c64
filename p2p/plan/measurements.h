// Measurements: the measured legs of this node's GPUs and NICs, and the file that keeps them
// between sessions.
//
// The key of a leg is its kind, the GPU, the NIC (or medium) and, for legs to a peer, the peer's
// GPU or host. The file is TOML with a version. A damaged file or one of another version is
// reported and treated as absent; no part of it is used. Several workers may share the file: save()
// adds to it under a file lock and replaces it atomically.
//
// Not thread-safe. load() and save() block on the file system. save() waits at most a tenth of a
// second for a worker that holds the lock.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "p2p/plan/leg_model.h"
#include "p2p/plan/planner.h"

namespace rcuda::p2p {

struct LegKey {
  std::string kind;  // "copy_out", "copy_in", "device_copy", "wire", "gpudirect", "ipc", ...
  std::string gpu;   // UUID of the GPU; empty for host-only legs
  std::string nic;   // "mlx5_0", or the medium if no NIC is involved
  std::string peer;  // GPU UUID or host of the other end; empty for legs within the node
  auto operator<=>(const LegKey&) const = default;
};

class Measurements {
 public:
  void set(const LegKey& key, LegModel leg) { legs_[key] = std::move(leg); }
  // Returns nullptr if the leg has not been measured.
  const LegModel* find(const LegKey& key) const;
  const std::map<LegKey, LegModel>& legs() const { return legs_; }
  // Adds the legs of `other`. They replace legs with the same key.
  void merge(const Measurements& other);

  static Result<Measurements> parse(std::string_view toml);
  std::string to_toml() const;

  // kNotFound if the file cannot be opened or is empty.
  static Result<Measurements> load(const std::string& path);
  // Adds these legs to the file. They replace legs with the same key. kTimeout if another process
  // holds the file's lock. If the file system has no locks and two workers save at the same time,
  // the legs of one of them may be lost.
  Status save(const std::string& path) const;

 private:
  Status replace(const std::string& path) const;

  std::map<LegKey, LegModel> legs_;
};

// The file with this user's measurements: $RCUDA_P2P_CACHE, otherwise p2p.toml in cache_folder()
// (common/base/cache_folder.h). Empty if there is no such folder.
std::string default_measurements_path();

// The two ends of a pair and the connection between them.
struct PairKey {
  std::string source_gpu;
  std::string destination_gpu;
  std::string source_host;
  std::string destination_host;
  std::string nic;     // the source's, or the medium if no NIC is involved
  std::string medium;  // with copies_by_cpu; empty: plain_medium() of the network
};
// The model of one direction, from the measurements of both nodes. Legs that have not been measured
// are empty.
PairModel pair_model(const Measurements& measurements, const PairKey& pair);

}  // namespace rcuda::p2p
