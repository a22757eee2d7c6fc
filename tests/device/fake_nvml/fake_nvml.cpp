// A library with NVML's names. Its first card does not know its temperature and its energy, and none knows a limit of
// its power. Built as a shared library of its own.
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** card) {
  *card = reinterpret_cast<void*>(0x10);
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** card) {
  *card = reinterpret_cast<void*>(0x20);
  return std::strcmp(id, "0000:1B:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  rates[0] = 97;
  rates[1] = 40;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* bytes) {
  bytes[0] = 80'000;  // in all, free, used
  bytes[1] = 8'000;
  bytes[2] = 72'000;
  return 0;
}
int nvmlDeviceGetTemperature(void* card, int sensor, unsigned* celsius) {
  *celsius = 71;
  return sensor == 0 && card == reinterpret_cast<void*>(0x20) ? 0 : 3;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 650'500;
  return 0;
}
// A joule and a half more each time that it is asked. The first card has no counter.
int nvmlDeviceGetTotalEnergyConsumption(void* card, unsigned long long* millijoules) {
  static unsigned long long used = 7'000'000'000;
  *millijoules = used += 1500;
  return card == reinterpret_cast<void*>(0x20) ? 0 : 3;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = 1410;
  return clock == 1 ? 0 : 2;
}
int nvmlDeviceGetMaxClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = 1980;
  return clock == 1 ? 0 : 2;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x4 | 0x20 | 0x1;
  return 0;
}
}
