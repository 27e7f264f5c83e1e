#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "../src/messages.h"
#include "commands.h"
#include "http.h"
#include "service.h"

namespace hydrant {
namespace {

constexpr std::chrono::seconds kShutdownTime{30};

sigset_t endings() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Waits this long for a signal to stop; true if one came.
bool received_stop(std::chrono::milliseconds within) {
  const sigset_t set = endings();
  const timespec time{within.count() / 1000, (within.count() % 1000) * 1'000'000};
  return sigtimedwait(&set, nullptr, &time) > 0;
}

void wait_for_signal(HttpServer& server) {
  while (!received_stop(std::chrono::seconds(1))) server.close_late();
}

// Prints why a model cannot read texts; clients do not learn about files on this machine.
void report_tokenizer(const Predictor& predictor) {
  try {
    if (!predictor.reads_images()) predictor.prepare_texts({{"a", std::nullopt}});
  } catch (const InputError& error) {
    std::cerr << "texts are not supported: " << error.what() << std::endl;
  }
}

// The name of a bundle: of its folder, or of the repository whose folder `hydrant` it is.
std::string bundle_name(const std::string& bundle) {
  std::filesystem::path full = std::filesystem::canonical(bundle);
  const std::filesystem::path above = full.parent_path();
  const bool cached = above.parent_path().filename() == "snapshots";
  if (full.filename() == "hydrant" && (cached || std::filesystem::is_directory(above / "onnx"))) full = above;
  if (full.parent_path().filename() == "snapshots") full = full.parent_path().parent_path();  // of a Hub cache
  const std::string name = full.filename().string();
  if (starts_with(name, "models--")) return name.substr(name.rfind("--") + 2);
  return name.empty() ? "model" : name;
}

}  // namespace

void reserve_signals() {
  const sigset_t set = endings();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));  // clients and readers of the first line may leave
}

void serve(const Predictor& predictor, const Arguments& arguments) {
  const bool six = arguments.serving.host.find(':') != std::string::npos;
  const std::string host = six ? "[" + arguments.serving.host + "]" : arguments.serving.host;
  const bool local = is_loopback(host);
  if (arguments.verbose && !predictor.reads_texts()) report_tokenizer(predictor);
  Service service(predictor, bundle_name(arguments.bundle), local, arguments.serving);
  HttpServer server(
      arguments.serving, [&](const HttpRequest& request) { return service.rejected(request); },
      [&](const HttpRequest& request) { return service.answer(request); });
  std::cout << "serving " << service.name() << " on http://" << host << ":" << server.port() << " ("
            << predictor.backend() << ", " << predictor.precision() << ")" << std::endl;
  if (!local && !arguments.serving.token)
    std::cerr << host << " accepts anyone's requests; --token-file requires a secret" << std::endl;
  wait_for_signal(server);
  service.stop();
  server.quiesce();
  const auto end = std::chrono::steady_clock::now() + kShutdownTime;
  while (server.open() > 0 && std::chrono::steady_clock::now() < end) {
    if (received_stop(std::chrono::milliseconds(20))) break;
    server.close_late();
  }
  const std::size_t left = server.open();
  std::cerr << "stopped" << (left == 0 ? "" : "; " + std::to_string(left) + " requests were not answered") << std::endl;
  // Running predictions cannot be stopped, and would delay the end.
  if (left > 0) std::_Exit(std::cout ? EXIT_SUCCESS : 2);
}

}  // namespace hydrant
