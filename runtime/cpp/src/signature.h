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
  // `file`: PEM file with the signer's public key (ECDSA over P-256, P-384 or P-521), or with the certificates of the
  // issuers that are trusted. Throws InputError: it cannot be used.
  explicit Trust(const std::filesystem::path& file);

  // Refuses a bundle that they did not sign as it is now: the manifest's bytes, those of every file that it lists, and
  // no file beside them. Throws BundleError: not signed, by another, or altered since.
  void check(const Bundle& bundle) const;

 private:
  std::filesystem::path file_;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_store_st> issuers_;
};

}  // namespace hydrant
