// Bundle signatures by OpenSSF model signing 1.0: a Sigstore bundle with an in-toto statement.
#pragma once

#include <filesystem>
#include <memory>

#include "bundle.h"

struct evp_pkey_st;    // OpenSSL's keys
struct x509_store_st;  // and certificates

namespace hydrant {

// Trusted signers: a public key, or issuers of certificates.
class Trust {
 public:
  // `file`: PEM file with an ECDSA public key (P-256, P-384, P-521) or trusted issuers. Throws InputError.
  explicit Trust(const std::filesystem::path& file);

  // Throws BundleError: a file differs from the signed one.
  void check(const Bundle& bundle) const;

 private:
  std::filesystem::path file_;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_store_st> issuers_;
};

}  // namespace hydrant
