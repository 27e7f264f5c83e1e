#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSteady = 0.025;  // largest coefficient of variation that goes without a warning, as in trtexec
constexpr double kLevel = 0.05;    // largest difference between the medians of the two halves

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string percent(double share) {
  char text[32];
  static_cast<void>(std::snprintf(text, sizeof text, "%.1f%%", share * 100));
  return text;
}

}  // namespace

std::vector<double> repeat(const std::function<void()>& run, const Rules& rules) {
  const Clock::time_point begin = Clock::now();
  do run();
  while (since(begin) < rules.warm_up);
  std::vector<double> taken;
  double spent = 0;
  while (taken.size() < rules.iterations || spent < rules.seconds) {
    const Clock::time_point start = Clock::now();
    run();
    taken.push_back(since(start));
    spent += taken.back();
  }
  return taken;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

Latency latency_of(const std::vector<double>& seconds) {
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double each : seconds) squares += (each - mean) * (each - mean);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  const double drift = seconds.size() < 2
                           ? 0
                           : percentile({middle, seconds.end()}, 0.5) / percentile({seconds.begin(), middle}, 0.5) - 1;
  const auto ms = [&](double share) { return percentile(seconds, share) * 1e3; };
  return {ms(0.5), ms(0.9), ms(0.95), ms(0.99), mean * 1e3, std::sqrt(squares / count) / mean, drift, seconds.size()};
}

std::vector<std::string> instabilities(const std::string& name, const Latency& latency) {
  std::vector<std::string> found;
  if (latency.variation > kSteady) {
    found.push_back(name + ": the times varied (standard deviation ÷ mean) by " + percent(latency.variation) +
                    "; close other programs, or measure longer with --seconds");
  }
  if (std::abs(latency.drift) > kLevel) {
    found.push_back(name + ": the medians of the first and the second half differ by " +
                    percent(std::abs(latency.drift)) + "; the machine was changing its speed; measure again");
  }
  return found;
}

std::vector<std::string> busy() {
  double load = 0;
  const auto cores = std::max(std::thread::hardware_concurrency(), 1U);
  if (getloadavg(&load, 1) != 1 || load <= cores) return {};
  char text[120];
  static_cast<void>(std::snprintf(text, sizeof text,
                                  "the load average was %.1f on %u cores before the measurement; close other programs",
                                  load, cores));
  return {text};
}

}  // namespace hydrant
