// NVML by its documented C interface: the few calls that are used are declared here, so that building needs no CUDA.
#include "device/gpu_monitor.h"

#include <dlfcn.h>

namespace redline::device {

// As nvml.h has them. The class of a header has members of these types, so they stand in no anonymous namespace: GCC 13
// crashes over that where files are compiled together.
namespace nvml {

using Status = int;
constexpr Status kSuccess = 0;
constexpr int kSensorGpu = 0, kClockSm = 1;
struct CardHandle;
using Card = CardHandle*;
struct UtilizationRates {
  unsigned gpu = 0, memory = 0;  // percent
};
struct MemoryInfo {
  unsigned long long total = 0, free = 0, used = 0;  // bytes
};
struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};

}  // namespace nvml

namespace {

using namespace nvml;

struct Reason {
  std::uint64_t bit;
  std::string_view words;
};
constexpr Reason kReasons[] = {
    {0x04, kPowerCap}, {0x08, "hardware slowdown"}, {0x20, "heat"}, {0x40, "heat (hardware)"}, {0x80, "power brake"}};

}  // namespace

std::string throttle_in_words(std::uint64_t reasons) {
  std::string words;
  for (const Reason& r : kReasons)
    if (reasons & r.bit) words += (words.empty() ? "" : ", ") + std::string(r.words);
  return words;
}

// The calls that a library has; one it lacks is null and its figure stays empty.
class Nvml {
 public:
  static std::unique_ptr<Nvml> load(const std::string& library, const std::string& bus_id) {
    auto nvml = std::make_unique<Nvml>();
    nvml->library_.reset(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
    return nvml->library_ && nvml->find_calls() && nvml->start(bus_id) ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (started_) shutdown_();
  }

  // Its energy is the counter's, from whenever that began.
  GpuSample sample() const {
    GpuSample s;
    UtilizationRates rates;
    if (utilization_ && utilization_(card_, &rates) == kSuccess) s.utilisation = rates.gpu / 100.0;
    MemoryInfo memory;
    if (memory_ && memory_(card_, &memory) == kSuccess && memory.total > 0)
      s.memory = static_cast<double>(memory.used) / static_cast<double>(memory.total);
    s.temperature_c = figure(1, temperature_, kSensorGpu);
    s.power_w = figure(1e-3, power_);
    s.power_limit_w = figure(1e-3, power_limit_);
    unsigned long long millijoules = 0;
    if (energy_ && energy_(card_, &millijoules) == kSuccess) s.energy_j = 1e-3 * static_cast<double>(millijoules);
    s.clock_mhz = figure(1, clock_, kClockSm);
    s.max_clock_mhz = figure(1, max_clock_, kClockSm);
    unsigned long long reasons = 0;
    if (throttle_ && throttle_(card_, &reasons) == kSuccess) s.throttle = throttle_in_words(reasons);
    return s;
  }

 private:
  template <class Call>
  void find(Call& call, const char* name) {
    call = reinterpret_cast<Call>(::dlsym(library_.get(), name));
  }

  bool find_calls() {
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2");
    find(by_index_, "nvmlDeviceGetHandleByIndex_v2");
    find(utilization_, "nvmlDeviceGetUtilizationRates");
    find(memory_, "nvmlDeviceGetMemoryInfo");
    find(temperature_, "nvmlDeviceGetTemperature");
    find(power_, "nvmlDeviceGetPowerUsage");
    find(power_limit_, "nvmlDeviceGetEnforcedPowerLimit");
    find(energy_, "nvmlDeviceGetTotalEnergyConsumption");
    find(clock_, "nvmlDeviceGetClockInfo");
    find(max_clock_, "nvmlDeviceGetMaxClockInfo");
    find(throttle_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    if (!throttle_) find(throttle_, "nvmlDeviceGetCurrentClocksEventReasons");  // its newer name
    return init_ && shutdown_ && by_bus_id_ && by_index_;
  }

  bool start(const std::string& bus_id) {
    started_ = init_() == kSuccess;
    if (!started_) return false;
    return (bus_id.empty() ? by_index_(0, &card_) : by_bus_id_(bus_id.c_str(), &card_)) == kSuccess;
  }

  // A call's last argument is where one unsigned goes.
  template <class Call, class... Which>
  std::optional<double> figure(double unit, Call call, Which... which) const {
    unsigned value = 0;
    if (!call || call(card_, which..., &value) != kSuccess) return std::nullopt;
    return unit * value;
  }

  std::unique_ptr<void, CloseLibrary> library_;
  Card card_ = nullptr;
  bool started_ = false;
  Status (*init_)() = nullptr;
  Status (*shutdown_)() = nullptr;
  Status (*by_bus_id_)(const char*, Card*) = nullptr;
  Status (*by_index_)(unsigned, Card*) = nullptr;
  Status (*utilization_)(Card, UtilizationRates*) = nullptr;
  Status (*memory_)(Card, MemoryInfo*) = nullptr;
  Status (*temperature_)(Card, int, unsigned*) = nullptr;
  Status (*power_)(Card, unsigned*) = nullptr;
  Status (*power_limit_)(Card, unsigned*) = nullptr;
  Status (*energy_)(Card, unsigned long long*) = nullptr;
  Status (*clock_)(Card, int, unsigned*) = nullptr;
  Status (*max_clock_)(Card, int, unsigned*) = nullptr;
  Status (*throttle_)(Card, unsigned long long*) = nullptr;
};

std::unique_ptr<GpuMonitor> GpuMonitor::open(const std::string& bus_id, const std::string& library,
                                             std::chrono::milliseconds interval) {
  std::unique_ptr<Nvml> nvml = Nvml::load(library, bus_id);
  return nvml ? std::unique_ptr<GpuMonitor>(new GpuMonitor(std::move(nvml), interval)) : nullptr;
}

GpuMonitor::GpuMonitor(std::unique_ptr<Nvml> nvml, std::chrono::milliseconds interval)
    : nvml_(std::move(nvml)), interval_(interval), thread_([this] { watch(); }) {}

GpuMonitor::~GpuMonitor() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

std::optional<GpuSample> GpuMonitor::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

// A driver may take long to answer: the lock is not held while it is asked.
void GpuMonitor::watch() {
  for (;;) {
    GpuSample sample = nvml_->sample();
    if (sample.energy_j && !first_energy_) first_energy_ = sample.energy_j;
    if (sample.energy_j) *sample.energy_j -= *first_energy_;
    std::unique_lock lock(mutex_);
    latest_ = std::move(sample);
    if (ending_.wait_for(lock, interval_, [this] { return end_; })) return;
  }
}

}  // namespace redline::device
