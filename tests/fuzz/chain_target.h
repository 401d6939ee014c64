// The chain fuzzer's work on one input: the certificate that a client presents
// (common/tls/authorities.h). The unit test runs it over fixed mutations, too. Each process makes
// new certificates. Only these are accepted: any change makes an authority's signature wrong, or
// the encoding is no longer DER.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "common/tls/authorities.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/certificates.h"

namespace rcuda::fuzz {

struct ChainWorld {
  ChainWorld() {
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("rcuda-chain-" + std::to_string(::getpid()));
    std::ofstream(file) << root.certificate_pem();
    auto read = tls::Authorities::read(file);
    std::filesystem::remove(file);
    must(read.ok());
    authorities = std::move(read).value();
    signature = tls::sign(ada, tls::Role::kClient, binding);
  }
  static const ChainWorld& one() {
    static const ChainWorld world;
    return world;
  }

  test::Certified root = test::make_certificate("users", nullptr, true);
  test::Certified site = test::make_certificate("site", &root, true);
  identity::Certificate ada = test::signer(test::make_certificate("ada", &site, false), {&site});
  std::shared_ptr<const tls::Authorities> authorities;
  tls::Key binding{7};
  std::string signature;
};

// Puts the input in the place of each certificate of the chain, in turn.
inline void fuzz_chain(const uint8_t* data, size_t size) {
  const ChainWorld& world = ChainWorld::one();
  const std::string input(reinterpret_cast<const char*>(data), size);
  for (size_t i = 0; i < world.ada.chain.size(); ++i) {
    identity::Chain chain = world.ada.chain;
    chain[i].der = input;
    const auto name = world.authorities->check_client(chain, world.signature, world.binding);
    must(accepted(name) == (input == world.ada.chain[i].der));
  }
}

inline std::vector<std::string> chain_corpus() {
  std::vector<std::string> corpus;
  for (const auto& [der] : ChainWorld::one().ada.chain) corpus.push_back(der);
  return corpus;
}

}  // namespace rcuda::fuzz
