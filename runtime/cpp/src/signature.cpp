#include "signature.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/objects.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "files.h"
#include "hydrant/hydrant.h"
#include "json.h"
#include "messages.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

constexpr const char* kSignature = "hydrant.sig";
constexpr const char* kManifest = "hydrant.json";
constexpr const char* kPayload = "application/vnd.in-toto+json";
constexpr const char* kPredicate = "https://model_signing/signature/v1.0";
constexpr std::uintmax_t kMaxSignatureBytes = 64U << 20U;
constexpr std::uintmax_t kMaxPemBytes = 1U << 20U;

void free_stack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }

using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Certificates = std::unique_ptr<STACK_OF(X509), Freed<free_stack>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>>;

// The reason why a signature is invalid.
class SignatureError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Decodes padded base64. Throws SignatureError.
std::string decoded(const std::string& text) {
  if (text.empty() || text.size() % 4 != 0) throw SignatureError("it holds no base64");
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) throw SignatureError("it holds no base64");
  const std::size_t padding = text[text.size() - 1] != '=' ? 0U : text[text.size() - 2] == '=' ? 2U : 1U;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

// A string in a JSON object. Throws SignatureError: missing or not a string.
const std::string& text_of(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_string()) throw SignatureError(std::string("it has no ") + key);
  return value.get_ref<const std::string&>();
}

// Clears OpenSSL's errors at the end of a call, for callers that use OpenSSL themselves.
struct ErrorsCleared {
  ErrorsCleared() = default;
  ErrorsCleared(const ErrorsCleared&) = delete;
  ErrorsCleared& operator=(const ErrorsCleared&) = delete;
  ~ErrorsCleared() { ERR_clear_error(); }
};

// OpenSSL's number of a key's elliptic curve.
int curve_of(EVP_PKEY* key) {
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
  std::array<char, 64> name{};
  const bool named = EVP_PKEY_get_group_name(key, name.data(), name.size(), nullptr) == 1;
  return named ? OBJ_sn2nid(name.data()) : NID_undef;
#else
  return EC_GROUP_get_curve_name(EC_KEY_get0_group(EVP_PKEY_get0_EC_KEY(key)));
#endif
}

// The digest for a key's curve; null for other keys and curves.
const EVP_MD* digest_for(EVP_PKEY* key) {
  if (key == nullptr || EVP_PKEY_base_id(key) != EVP_PKEY_EC) return nullptr;
  switch (curve_of(key)) {
    case NID_X9_62_prime256v1:  // P-256
      return EVP_sha256();
    case NID_secp384r1:
      return EVP_sha384();
    case NID_secp521r1:
      return EVP_sha512();
    default:
      return nullptr;
  }
}

// Returns true if a certificate allows digital signatures or code signing.
bool may_sign(X509* certificate) {
  const std::uint32_t flags = X509_get_extension_flags(certificate);
  const bool usage = (flags & EXFLAG_KUSAGE) != 0 && (X509_get_key_usage(certificate) & KU_DIGITAL_SIGNATURE) != 0;
  const bool extended =
      (flags & EXFLAG_XKUSAGE) != 0 && (X509_get_extended_key_usage(certificate) & XKU_CODE_SIGN) != 0;
  return usage || extended;
}

// An ASN.1 time in seconds since 1970. Throws SignatureError.
std::time_t seconds_of(const ASN1_TIME* moment) {
  std::unique_ptr<ASN1_TIME, Freed<ASN1_TIME_free>> epoch(ASN1_TIME_set(nullptr, 0));
  int days = 0, seconds = 0;
  if (!epoch || ASN1_TIME_diff(&days, &seconds, epoch.get(), moment) != 1)
    throw SignatureError("a certificate has no time");
  return static_cast<std::time_t>(days) * 86400 + seconds;
}

Certificate certificate_of(const Json& entry) {
  const std::string bytes = decoded(text_of(entry, "rawBytes"));
  const auto* start = reinterpret_cast<const unsigned char*>(bytes.data());
  Certificate certificate(d2i_X509(nullptr, &start, static_cast<long>(bytes.size())));
  if (!certificate) throw SignatureError("it holds no certificate");
  return certificate;
}

// The key of a signature's certificate, if its chain ends at a trusted issuer. Throws SignatureError.
Key certified_key(const Json& chain, X509_STORE* store) {
  if (!chain.is_array() || chain.empty()) throw SignatureError("it has no certificate, but issuers are trusted");
  const Certificate signer = certificate_of(chain[0]);
  Certificates between(sk_X509_new_null());
  for (std::size_t i = 1; between && i < chain.size(); ++i) {
    Certificate next = certificate_of(chain[i]);
    if (sk_X509_push(between.get(), next.get()) > 0)
      next.release();  // NOLINT(bugprone-unused-return-value): the stack's from here
  }
  StoreContext context(X509_STORE_CTX_new());
  if (!between || !context || X509_STORE_CTX_init(context.get(), store, signer.get(), between.get()) != 1)
    throw SignatureError("OpenSSL cannot check certificates here");
  // Checked at the start of its validity, so that bundles outlive their certificates.
  X509_STORE_CTX_set_time(context.get(), 0, seconds_of(X509_get0_notBefore(signer.get())));
  if (X509_verify_cert(context.get()) != 1)
    throw SignatureError(X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
  if (!may_sign(signer.get())) throw SignatureError("its certificate cannot be used for signing");
  return Key(X509_get_pubkey(signer.get()));
}

// The signed statement, after its signature was checked. Throws SignatureError.
std::string signed_payload(const Json& signature_file, EVP_PKEY* trusted, X509_STORE* issuers) {
  const Json& envelope = member(signature_file, "dsseEnvelope");
  const std::string payload = decoded(text_of(envelope, "payload"));
  const std::string& kind = text_of(envelope, "payloadType");
  if (kind != kPayload) throw SignatureError("it signs " + cut(kind) + ", not " + kPayload);
  const Json& signatures = member(envelope, "signatures");
  if (!signatures.is_array() || signatures.empty()) throw SignatureError("it has no signatures");
  const std::string signature = decoded(text_of(signatures[0], "sig"));
  const Json& chain =
      member(member(member(signature_file, "verificationMaterial"), "x509CertificateChain"), "certificates");
  const Key certified = trusted != nullptr ? nullptr : certified_key(chain, issuers);
  EVP_PKEY* key = trusted != nullptr ? trusted : certified.get();
  const EVP_MD* digest = digest_for(key);
  if (digest == nullptr) throw SignatureError("its key has another curve than P-256, P-384 or P-521");
  // DSSE signs the type and the lengths, too.
  const std::string message =
      "DSSEv1 " + std::to_string(kind.size()) + " " + kind + " " + std::to_string(payload.size()) + " " + payload;
  const DigestContext context(EVP_MD_CTX_new());
  const auto bytes = [](const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  const bool holds =
      context && EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key) == 1 &&
      EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(message), message.size()) == 1;
  if (!holds) throw SignatureError("the signature is another's");
  return payload;
}

// The digests in a statement: file → SHA-256. Throws SignatureError: it does not sign whole files.
std::map<std::string, std::string> digests_of(const Json& statement) {
  if (text_of(statement, "predicateType") != kPredicate) throw SignatureError("it does not sign files");
  const Json& resources = member(member(statement, "predicate"), "resources");
  if (!resources.is_array()) throw SignatureError("it lists no files");
  std::map<std::string, std::string> digests;
  for (const Json& resource : resources) {
    if (text_of(resource, "algorithm") != "sha256") throw SignatureError("its digests are not SHA-256");
    if (!digests.emplace(text_of(resource, "name"), text_of(resource, "digest")).second)
      throw SignatureError("it lists a file twice");
  }
  return digests;
}

// Throws SignatureError: the folder has links, other than to a Hub cache's blobs, or files that the statement does not
// list.
void check_whole(const fs::path& folder, const std::map<std::string, std::string>& digests) {
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().lexically_relative(folder).generic_string();
    if (entry->is_symlink() && !is_hub_blob(entry->path(), folder)) throw SignatureError(cut(name) + " is a link");
    if (!entry->is_directory() && name != kSignature && digests.count(name) == 0)
      throw SignatureError(cut(name) + " was added");
  }
}

// Checks the bytes of every listed file, also of unused ones.
void check_files(const Bundle& bundle) {
  for (const std::string& name : bundle.names()) {
    try {
      bundle.file(name);
    } catch (const BundleError&) {
      throw SignatureError(cut(name) + " was changed, or is missing");
    }
  }
}

void check_signed(const Bundle& bundle, const fs::path& place, EVP_PKEY* key, X509_STORE* issuers) {
  const ErrorsCleared at_the_end;
  const auto bytes = bytes_of(place);
  if (!bytes) throw SignatureError("it cannot be read");
  const auto digests = digests_of(parse_json(signed_payload(parse_json(*bytes), key, issuers)));
  const auto signed_as = [&](const std::string& name, const std::string& digest) {
    const auto entry = digests.find(name);
    return entry != digests.end() && entry->second == digest;
  };
  if (!signed_as(kManifest, bundle.manifest_digest())) throw SignatureError(std::string(kManifest) + " was changed");
  for (const std::string& name : bundle.names()) {
    if (!signed_as(name, bundle.digest(name))) throw SignatureError(cut(name) + " was changed");
  }
  for (const auto& [name, digest] : digests) {
    if (name != kManifest && !bundle.has(name)) throw SignatureError(cut(name) + " is not listed in " + kManifest);
  }
  check_files(bundle);
  check_whole(bundle.path(), digests);
}

}  // namespace

Trust::Trust(const fs::path& file) : file_(file) {
  std::error_code failed;
  if (!fs::is_regular_file(file, failed)) throw InputError(cut(file.string()) + " is not a file; expected a PEM file");
  if (fs::file_size(file, failed) > kMaxPemBytes || failed)
    throw InputError(concat(file.string(), " is larger than ", kMaxPemBytes, " bytes; expected a PEM file"));
  const auto bytes = bytes_of(file);
  if (!bytes) throw InputError("cannot read " + file.string() + "; check its permissions");
  const ErrorsCleared at_the_end;
  const auto source = [&] { return Bio(BIO_new_mem_buf(bytes->data(), static_cast<int>(bytes->size()))); };
  if (bytes->find("PUBLIC KEY-----") != std::string::npos) {
    key_.reset(PEM_read_bio_PUBKEY(source().get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
    if (digest_for(key_.get()) == nullptr)
      throw InputError(file.string() + " cannot be used; expected a key of the curves P-256, P-384 or P-521");
    return;
  }
  issuers_.reset(X509_STORE_new(), X509_STORE_free);
  const Bio certificates = source();
  std::size_t count = 0;
  while (issuers_ && certificates) {
    const Certificate next(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
    if (!next) break;
    count += X509_STORE_add_cert(issuers_.get(), next.get()) == 1 ? 1U : 0U;
  }
  if (count == 0) throw InputError(file.string() + " holds no PEM block of a public key or certificate; expected one");
}

void Trust::check(const Bundle& bundle) const {
  const fs::path place = bundle.path() / kSignature;
  std::error_code failed;
  if (!fs::is_regular_file(fs::symlink_status(place, failed)) && !is_hub_blob(place, bundle.path()))
    throw BundleError("bundle " + bundle.path().string() + " is not signed; sign it with `hydrant sign`");
  if (fs::file_size(place, failed) > kMaxSignatureBytes || failed)
    throw BundleError(concat(place.string(), " is larger than ", kMaxSignatureBytes, " bytes; expected a signature"));
  std::string why;
  try {
    check_signed(bundle, place, key_.get(), issuers_.get());
    return;
  } catch (const SignatureError& error) {
    why = error.what();
  } catch (const std::invalid_argument& error) {
    why = one_line(error.what());
  } catch (const fs::filesystem_error& error) {
    why = one_line(error.what());
  }
  throw BundleError(concat("bundle ", bundle.path().string(), " is not what the owner of ", file_.string(), " signed (",
                           why, "); get it again, or sign it again with `hydrant sign` if the change is yours"));
}

}  // namespace hydrant
