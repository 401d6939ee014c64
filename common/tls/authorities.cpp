#include "common/tls/authorities.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <openssl/err.h>
#include <openssl/x509v3.h>

namespace rcuda::tls {
namespace {

using Bytes = std::span<const uint8_t>;
using namespace std::string_view_literals;

// Reads DER elements. After a failure, element() returns empty bytes and done() returns false.
class Cursor {
 public:
  explicit Cursor(Bytes bytes) : rest_(bytes) {}

  bool done() const { return !failed_ && rest_.empty(); }
  // Returns the content of an element whose length has the shortest form. `whole` receives the
  // element with its head.
  Bytes element(uint8_t tag, Bytes* whole = nullptr) {
    const Bytes begin = rest_;
    bool good = number(1) == tag;
    size_t length = number(1);
    if (length == 0x81) {
      length = number(1);
      good = good && length >= 0x80;
    } else if (length == 0x82) {
      length = number(2);
      good = good && length >= 0x100;
    } else {
      good = good && length < 0x80;
    }
    const Bytes content = take(length);
    failed_ = failed_ || !good;
    if (failed_) return {};
    if (whole) *whole = begin.first(begin.size() - rest_.size());
    return content;
  }

 private:
  Bytes take(size_t count) {
    failed_ = failed_ || count > rest_.size();
    if (failed_) return {};
    const Bytes taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  size_t number(size_t bytes) {
    size_t value = 0;
    for (const uint8_t byte : take(bytes)) value = value << 8 | byte;
    return value;
  }

  Bytes rest_;
  bool failed_ = false;
};

struct Algorithm {
  std::string_view id;  // DER of its AlgorithmIdentifier
  const char* key;
  const char* digest;
};
constexpr Algorithm kAlgorithms[] = {
    {"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02"sv, "EC", "SHA256"},
    {"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03"sv, "EC", "SHA384"},
    {"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x04"sv, "EC", "SHA512"},
    {"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00"sv, "RSA", "SHA256"},
    {"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c\x05\x00"sv, "RSA", "SHA384"},
    {"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d\x05\x00"sv, "RSA", "SHA512"},
    {"\x30\x05\x06\x03\x2b\x65\x70"sv, "ED25519", nullptr}};

// The parts of a certificate, split without the X.509 parser.
struct Parts {
  Bytes content, signature;
  const Algorithm* algorithm = nullptr;

  bool signed_by(const Owned<X509>& issuer) const {
    EVP_PKEY* const key = X509_get0_pubkey(issuer.get());
    return key && EVP_PKEY_is_a(key, algorithm->key) &&
           verify(key, algorithm->digest, content, signature);
  }
};

std::optional<Parts> split(const std::string& der) {
  constexpr uint8_t kSequence = 0x30, kBitString = 0x03;
  Cursor outer({reinterpret_cast<const uint8_t*>(der.data()), der.size()});
  Cursor cursor(outer.element(kSequence));
  Parts parts;
  Bytes id;
  (void)cursor.element(kSequence, &parts.content);
  (void)cursor.element(kSequence, &id);
  const Bytes bits = cursor.element(kBitString);
  if (!outer.done() || !cursor.done() || bits.empty() || bits[0] != 0) return {};
  parts.signature = bits.subspan(1);
  const std::string_view text(reinterpret_cast<const char*>(id.data()), id.size());
  parts.algorithm = std::ranges::find(kAlgorithms, text, &Algorithm::id);
  if (parts.algorithm == std::end(kAlgorithms)) return {};
  return parts;
}

// Returns the certificate's common name. Returns nullopt if it has none or several, or if the name
// has blanks or control characters.
std::optional<std::string> common_name(const X509* certificate) {
  X509_NAME* const subject = X509_get_subject_name(certificate);
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (index < 0) return {};
  unsigned char* text = nullptr;
  const int bytes =
      ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
  if (bytes < 0) return {};
  std::string name(reinterpret_cast<char*>(text), static_cast<size_t>(bytes));
  OPENSSL_free(text);
  // A function that stops at a NUL would read a name with a NUL as another user's name.
  const auto is_odd = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
  const bool single = X509_NAME_get_index_by_NID(subject, NID_commonName, index) < 0;
  if (!single || name.empty() || std::any_of(name.begin(), name.end(), is_odd)) return {};
  return name;
}

}  // namespace

Result<std::shared_ptr<const Authorities>> Authorities::read(const std::string& file) {
  initialise();
  const auto made = std::make_shared<Authorities>();
  made->store_.reset(X509_STORE_new());
  if (!made->store_ || X509_STORE_load_file(made->store_.get(), file.c_str()) != 1) {
    const Status status = ssl_error("cannot use the certificates of authorities in " + file);
    return Status(Code::kInvalidArgument, status.context());
  }
  STACK_OF(X509)* const all = X509_STORE_get1_all_certs(made->store_.get());
  for (int i = 0; i < sk_X509_num(all); ++i)
    made->certificates_.emplace_back(sk_X509_value(all, i));
  sk_X509_free(all);
  return std::shared_ptr<const Authorities>(made);
}

// Returns the certificates of the chain, the client's first. Each certificate must be signed by the
// next certificate or by an authority. Otherwise returns no certificate.
std::vector<Owned<X509>> Authorities::read_signed(const identity::Chain& chain) const {
  std::vector<Owned<X509>> read;
  if (chain.size() > identity::kMostCertificates) return {};
  for (size_t i = chain.size(); i-- > 0;) {
    const std::optional<Parts> parts = split(chain[i].der);
    if (!parts) return {};
    const auto is_issuer = [&](const Owned<X509>& one) { return parts->signed_by(one); };
    const bool is_signed =
        (!read.empty() && is_issuer(read.front())) || std::ranges::any_of(certificates_, is_issuer);
    if (!is_signed) return {};
    const auto* data = reinterpret_cast<const unsigned char*>(chain[i].der.data());
    Owned<X509> one(d2i_X509(nullptr, &data, static_cast<long>(chain[i].der.size())));
    ERR_clear_error();
    if (!one || (i > 0 && X509_check_ca(one.get()) == 0)) return {};
    read.insert(read.begin(), std::move(one));
  }
  return read;
}

Result<std::string> Authorities::check_client(const identity::Chain& chain,
                                              const std::string& signature,
                                              const Key& binding) const {
  const std::vector<Owned<X509>> known = read_signed(chain);
  if (known.empty()) {
    return Status(
        Code::kDenied,
        "the client's certificate is not signed by an authority that the server's setting "
        "client_authorities names, or its signature algorithm is not supported");
  }
  if (!has_signed(known.front().get(), Role::kClient, binding, signature)) {
    return Status(Code::kDenied, "the client does not have the key of its certificate");
  }
  RCUDA_RETURN_IF_ERROR(check_chain(known, store_.get(), "ssl_client"));
  std::optional<std::string> name = common_name(known.front().get());
  if (!name) {
    return Status(Code::kDenied,
                  "the client's certificate does not name a user: it needs one common name (CN) "
                  "without blanks");
  }
  return *std::move(name);
}

}  // namespace rcuda::tls
