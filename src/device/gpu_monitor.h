// The state of a card while it works: utilisation, memory, temperature, power, energy, clocks, and the reasons that
// hold them down. The driver's NVML tells it. The library is loaded at run time; a machine without it has no monitor,
// and no error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace redline::device {

// The one throttle reason that a busy card shows all the time.
inline constexpr std::string_view kPowerCap = "power cap";

// A figure that the card does not give is empty.
struct GpuSample {
  std::optional<double> utilisation;  // share of the last interval in which a kernel ran
  std::optional<double> memory;       // share of its memory that all processes hold together
  std::optional<double> temperature_c;
  std::optional<double> power_w, power_limit_w;
  std::optional<double> energy_j;                  // since the monitor was opened, by the driver's counter
  std::optional<double> clock_mhz, max_clock_mhz;  // of the multiprocessors
  std::optional<std::string> throttle;             // "power cap, heat"; "": nothing holds the clocks down
};

// The reasons in NVML's bits that slow work down, in words. Idleness and clocks that somebody has set are none.
std::string throttle_in_words(std::uint64_t reasons);

class Nvml;  // the loaded library

// Asks at every interval on a thread of its own, while it lives. A card's power is its mean over about a second.
class GpuMonitor {
 public:
  // The monitor of the card at `bus_id` ("0000:1B:00.0"; empty: the first). Nothing where the library or the card is
  // not there.
  static std::unique_ptr<GpuMonitor> open(const std::string& bus_id, const std::string& library = "libnvidia-ml.so.1",
                                          std::chrono::milliseconds interval = std::chrono::seconds(1));
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  std::optional<GpuSample> latest() const;  // never waits for the card

 private:
  GpuMonitor(std::unique_ptr<Nvml> nvml, std::chrono::milliseconds interval);
  void watch();

  std::unique_ptr<Nvml> nvml_;
  std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::optional<GpuSample> latest_;
  std::optional<double> first_energy_;  // of the counter; of the thread alone
  std::thread thread_;
};

}  // namespace redline::device
