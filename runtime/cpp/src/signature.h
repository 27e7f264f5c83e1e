// Signatures of bundles, by the OpenSSF model-signing standard 1.0: a Sigstore bundle over an in-toto statement.
#pragma once

#include <filesystem>
#include <memory>

#include "bundle.h"

struct evp_pkey_st;    // OpenSSL's key
struct x509_store_st;  // and its certificates

namespace hydrant {

// Who is trusted: the owner of a key, or issuers of certificates.
class Trust {
 public:
  // `file`: PEM file with an ECDSA public key (P-256, P-384, P-521) or trusted issuers. Throws InputError.
  explicit Trust(const std::filesystem::path& file);

  // Refuses a bundle that differs in any file from what they signed. Throws BundleError.
  void check(const Bundle& bundle) const;

 private:
  std::filesystem::path file_;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_store_st> issuers_;
};

}  // namespace hydrant
