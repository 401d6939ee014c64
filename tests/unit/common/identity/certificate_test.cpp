#include "common/identity/certificate.h"

#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include "common/identity/encoding.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace rcuda::identity {
namespace {

using testing::HasSubstr;

// Made with "openssl req -x509".
constexpr char kForeignCertificate[] = R"(-----BEGIN CERTIFICATE-----
MIIBeTCCAR+gAwIBAgIUI8aIYObioSkLXwindg9hp28+c1wwCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGZ29sZGVuMCAXDTI2MTEyNTA3MjMxNFoYDzIxMjYxMTAxMDcy
MzE0WjARMQ8wDQYDVQQDDAZnb2xkZW4wWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AATOcYkuudEiBjK04t/NArbLbaYal2UYFooKE2ukxYbRPeAsM/UQzQsTG9/cI2yX
HgI4GnAGIA1Y8iOdqbOxrlzMo1MwUTAdBgNVHQ4EFgQU6LcnIAOKXhco6gxinvKd
s+AI4mMwHwYDVR0jBBgwFoAU6LcnIAOKXhco6gxinvKds+AI4mMwDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBilM8+50MPNzpP8nX3seqT7FkUvQFP
N+an8RQx1KzU8wIhAJtpr+Ratiw98EKAdDQK2SMPRv8jpWlz5PXjXsJ5Enin
-----END CERTIFICATE-----
)";

class CertificateTest : public testing::Test {
 protected:
  Hash fingerprint(const Certificate& certificate) {
    const Result<Hash> hash = fingerprint_of(certificate.x509.get());
    EXPECT_TRUE(hash.ok());
    return *hash;
  }
  // Makes a certificate in the file `name`, and returns the file's text.
  std::string made(const std::string& name) {
    const auto certificate = load_or_make_certificate(folder_.file(name), "node1");
    EXPECT_TRUE(certificate.ok()) << certificate.status().message();
    return folder_.read(name);
  }
  static std::string key_of(const std::string& pem) {
    return pem.substr(pem.find("-----BEGIN PRIVATE KEY"));
  }
  static std::string certificate_of(const std::string& pem) {
    return pem.substr(0, pem.find("-----BEGIN PRIVATE KEY"));
  }

  test::TempFolder folder_;
};

TEST_F(CertificateTest, FingerprintIsOfThePublicKey) {
  BIO* const bio = BIO_new_mem_buf(kForeignCertificate, -1);
  X509* const x509 = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  ASSERT_NE(x509, nullptr);
  // openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
  EXPECT_EQ(to_hex(*fingerprint_of(x509)),
            "f071fb0d0293395235e728961ab0c2847451eb2142b71405ba8540523b92a4aa");
  X509_free(x509);
}

TEST_F(CertificateTest, IsMadeOnce) {
  const std::string path = folder_.file("new/server.pem");
  const auto first = load_or_make_certificate(path, "node1");
  ASSERT_TRUE(first.ok()) << first.status().message();
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  for (const auto& again : {load_or_make_certificate(path, "node2"), load_certificate(path)}) {
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(fingerprint(*again), fingerprint(*first));
  }
  made("other.pem");
  EXPECT_NE(fingerprint(*load_certificate(folder_.file("other.pem"))), fingerprint(*first));
}

TEST_F(CertificateTest, WhatIsMade) {
  const auto certificate =
      load_or_make_certificate(folder_.file("server.pem"), "node1," + std::string(100, 'x'));
  ASSERT_TRUE(certificate.ok()) << certificate.status().message();
  X509* const x509 = certificate->x509.get();
  EXPECT_EQ(X509_verify(x509, certificate->key.get()), 1);
  EXPECT_EQ(EVP_PKEY_get_bits(certificate->key.get()), 256);
  char name[100] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(x509), NID_commonName, name, sizeof name);
  EXPECT_EQ(name, "node1," + std::string(58, 'x'));
  EXPECT_LT(X509_cmp_current_time(X509_get0_notBefore(x509)), 0);
  int days = 0, seconds = 0;
  ASSERT_EQ(ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(x509)), 1);
  EXPECT_GT(days, 365'000);
}

TEST_F(CertificateTest, ProcessesThatStartAtOnceGetTheSame) {
  std::vector<Hash> hashes(8);
  std::vector<std::thread> threads;
  for (Hash& hash : hashes) {
    threads.emplace_back([&] {
      const auto certificate = load_or_make_certificate(folder_.file("server.pem"), "node1");
      if (certificate.ok()) hash = fingerprint(*certificate);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<Hash>(hashes.begin(), hashes.end()).size(), 1u);
  EXPECT_EQ(hashes[0], fingerprint(*load_certificate(folder_.file("server.pem"))));
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(CertificateTest, KeyAndCertificateMayBeInAnyOrder) {
  const std::string pem = made("server.pem");
  const auto swapped = parse_certificate(key_of(pem) + certificate_of(pem));
  ASSERT_TRUE(swapped.ok()) << swapped.status().message();
  EXPECT_EQ(fingerprint(*swapped), fingerprint(*parse_certificate(pem)));
}

TEST_F(CertificateTest, WhatIsNotUsableIsRefused) {
  const std::string one = made("one.pem"), two = made("two.pem");
  for (const auto& [text, why] : std::initializer_list<std::pair<std::string, const char*>>{
           {"", "no certificate"},
           {"text", "no certificate"},
           {key_of(one), "no certificate"},
           {certificate_of(one), "no private key"},
           {kForeignCertificate + key_of(one), "another certificate"},
           {certificate_of(one) + key_of(two), "another certificate"},
       }) {
    const auto parsed = parse_certificate(text);
    ASSERT_FALSE(parsed.ok()) << why;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().context(), HasSubstr(why));
  }
  EXPECT_TRUE(parse_certificate(one).ok());  // the earlier errors have no effect on later calls
}

TEST_F(CertificateTest, NoneOfTheChainIsLeftOut) {
  const std::string one = made("one.pem");
  std::string damaged = certificate_of(one);
  damaged[damaged.find("-----\n") + 10] = '!';
  std::string five = one;
  for (int i = 0; i < 4; ++i) five += certificate_of(one);
  const auto padded = [](size_t bytes) {
    return test::make_certificate("node1", nullptr, true, test::KeyKind::kP256,
                                  std::string(bytes, 'x'));
  };
  const std::string half = padded(31'000).certificate_pem();
  for (const auto& [text, why] : std::initializer_list<std::pair<std::string, const char*>>{
           {one + damaged, "cannot be read"},
           {damaged + one, "cannot be read"},
           {one + certificate_of(one).substr(0, 100), "cannot be read"},
           {five, "more than 4 certificates"},
           {padded(65'000).pem(), "the limit is 60 KiB"},
           {one + half + half, "the limit is 60 KiB"},
       }) {
    const auto parsed = parse_certificate(text);
    ASSERT_FALSE(parsed.ok()) << why;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().context(), HasSubstr(why));
  }
  const auto whole = parse_certificate(padded(20'000).pem() + half);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole->chain.size(), 2u);
}

TEST_F(CertificateTest, AnEncryptedKeyAsksForNoPassword) {
  const auto certificate = load_or_make_certificate(folder_.file("server.pem"), "node1");
  ASSERT_TRUE(certificate.ok());
  BIO* const bio = BIO_new(BIO_s_mem());
  ASSERT_EQ(PEM_write_bio_X509(bio, certificate->x509.get()), 1);
  ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(bio, certificate->key.get(), EVP_aes_128_cbc(), "word", 4,
                                          nullptr, nullptr),
            1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  const auto parsed = parse_certificate({data, static_cast<size_t>(size)});
  BIO_free(bio);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.status().context(), HasSubstr("without a password"));
}

TEST_F(CertificateTest, ErrorsNameTheFileAndTheRemedy) {
  const std::string path = folder_.write("server.pem", "text");
  for (const auto& loaded : {load_certificate(path), load_or_make_certificate(path, "node1")}) {
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.status().context(), HasSubstr(path));
    EXPECT_THAT(loaded.status().context(), HasSubstr("put a certificate and its key there"));
  }
  EXPECT_EQ(folder_.read("server.pem"), "text");
  made("open.pem");
  ::chmod(folder_.file("open.pem").c_str(), 0640);
  const auto open = load_or_make_certificate(folder_.file("open.pem"), "node1");
  ASSERT_FALSE(open.ok());
  EXPECT_EQ(open.status().code(), Code::kDenied);
  EXPECT_THAT(open.status().context(), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace rcuda::identity
