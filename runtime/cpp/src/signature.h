// Signatures of bundles, by the OpenSSF model-signing standard 1.0: a Sigstore bundle over an in-toto statement.
#pragma once

#include <filesystem>

#include "bundle.h"

namespace hydrant {

// Refuses a bundle that the owner of a key did not sign as it is now: the manifest's bytes, the digest of every file
// that it lists, and no file beside them.
// `trust`: PEM file with the signer's public key (ECDSA over P-256, P-384 or P-521), or with the certificates of the
// issuers that are trusted. Throws BundleError: not signed, by another, or altered since; InputError: `trust`.
void check_signature(const Bundle& bundle, const std::filesystem::path& trust);

}  // namespace hydrant
