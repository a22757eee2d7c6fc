// `redline train DIR` on a folder of text, with nothing else said: it finds the text, trains a tokenizer or takes
// bytes, measures models, and fills in what nobody wrote of the configuration, each key with its reason. Training
// itself is as ever.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "config/keys.h"
#include "config/load.h"
#include "device/device.h"
#include "train/observer.h"

namespace redline::cli {

// The settings that somebody wrote, before anything is chosen.
config::Config asked_for(const config::Sources& sources);

// The text of a folder.
struct TextFolder {
  std::string folder;
  std::vector<std::string> train, eval;  // for data.train and data.eval
  std::vector<std::string> files;        // to train on
  double bytes = 0;                      // of them, about, decompressed
  std::string aside;                     // on files and folders that are not read; empty: there are none
};

// Nothing where the word is no folder. Runs and models below it, and what lies in the folder of the run that begins,
// are passed over. A folder that holds tokens, or nothing but runs and models, and one without text, is a UserError
// that says what to do.
std::optional<TextFolder> find_text(FileSystem& files, const std::string& word, const config::Config& asked,
                                    const Path& run);

// The name of a run on a folder of text: "my_texts".
std::string name_of_text(const std::string& folder);

// The rules, which know nothing of files and devices.

// 0: the text is so short that bytes serve better than a tokenizer trained on it.
std::int64_t first_vocabulary(double text_bytes);

struct FirstModel {
  std::int64_t layers = 0, hidden = 0, heads = 0, ffn = 0, seq_len = 0;

  double parameters(std::int64_t vocabulary) const;  // that compute: those of the layers, and the head
};
std::span<const FirstModel> first_models();  // the smallest first

struct FirstText {
  double tokens = 0;  // to train on, about
  std::int64_t vocabulary = 0;
};

struct FirstPlan {
  FirstModel model;
  double tokens_per_s = 0;                // measured
  double tokens = 0;                      // that the run is expected to read
  double epochs = 0;                      // of the text
  double steps = 0;                       // that somebody asked for; 0: as many as the tokens make
  bool by_text = false;                   // the text, and not the time, ends the run and bounds the model
  std::int64_t rows = 0, accumulate = 0;  // of a step, that somebody asked for; 0: chosen
};

// What somebody asked for that ends a run; 0: nothing.
struct FirstEnd {
  double steps = 0, tokens = 0, epochs = 0;
  bool timed = false;  // hours, too
};

// Tokens a second of a model in steps of so many tokens; 0: it cannot run here.
using MeasureModel = std::function<double(const FirstModel& model, std::int64_t tokens_a_step)>;

// The largest of the models, the smallest of which stands first, of which the time has room for enough tokens, and the
// text for its parameters. `flops`: of the device, about, for the model that is measured first. Models that cannot run
// are too large; where none can, the result has no speed.
FirstPlan plan_first_run(std::span<const FirstModel> models, const FirstText& text, double seconds, double flops,
                         const MeasureModel& measure);
// Of a plan for some hours, the one that ends as asked.
FirstPlan end_as_asked(FirstPlan plan, const FirstText& text, const FirstEnd& end, device::Kind device);

struct FirstSetting {
  std::string_view key;
  config::Value value;
  std::string reason;
};

// Of model, batch, recipe and looks at the run. `hours`: that the run may take; 0: something else ends it.
std::vector<FirstSetting> first_settings(const FirstPlan& plan, const FirstText& text, double hours,
                                         device::Kind device);

struct FirstRunRequest {
  Path folder;  // of the run, which is not touched
  std::string device = "auto";
  bool dry_run = false;  // random tokens take the text's place
};

// What is chosen. Ctrl-C ends it at once; nothing is written.
struct FirstRun {
  std::vector<FirstSetting> choices;
  std::vector<std::string> notes;  // for the user, before the run
  std::string tokenizer;           // tokenizer.json, to be written to first_tokenizer(); empty: none was trained

  void complete(config::Config& config) const;  // sets the keys that nothing else says
};
inline Path first_tokenizer(const Path& run) { return run / "tokenizer" / "tokenizer.json"; }
FirstRun choose_first_run(const TextFolder& text, config::Sources sources, const FirstRunRequest& request);

// Hears the run's samples. After the run it writes the report, shows the last sample and what to do next.
class FirstRunEnd final : public train::Observer {
 public:
  void on(const train::Event& event) override;
  // The words to print. `config`: the run's.
  std::string write(FileSystem& files, const Path& folder, const config::Config& config) const;

 private:
  std::optional<train::SampledText> sample_;
};

}  // namespace redline::cli
