#include "server/daemon/ops/reload.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/list_text.h"
#include "common/base/log.h"

namespace rcuda::server {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) append_item(&all, word);
  return all;
}

}  // namespace

bool is_reloaded(std::string_view key) {
  return std::find(std::begin(kReloaded), std::end(kReloaded), key) != std::end(kReloaded);
}

SettingChanges compare(const Settings& now, const Settings& next) {
  SettingChanges changes;
  for (const config::SettingBase* setting : now.registry.settings()) {
    const std::string& key = setting->key();
    if (setting->text() == next.registry.find_key(key)->text()) continue;
    (is_reloaded(key) ? changes.reloaded : changes.need_restart).push_back(key);
  }
  return changes;
}

// The result of read().
struct Reload::Next {
  Settings settings;
  Rules rules;
  Authenticator::Trust trust;
  SettingChanges changes;
};

Status Reload::read(Next* next) {
  if (!load_) return {Code::kUnsupported, "this server cannot reload its settings: restart it"};
  RCUDA_RETURN_IF_ERROR(load_(&next->settings));
  const std::string& file = settings_.config_file;
  if (!file.empty() && next->settings.config_file.empty()) {
    return {Code::kNotFound, "the configuration file " + file +
                                 " no longer exists: restore it, or restart the server without it"};
  }
  RCUDA_ASSIGN_OR_RETURN(next->rules, read_rules(next->settings.config_file));
  RCUDA_ASSIGN_OR_RETURN(next->trust, authenticator_.read(next->settings));
  next->changes = compare(settings_, next->settings);
  // audit_.open() comes last, because it replaces the open file, and no later step may fail.
  return next->settings.audit.at_origin(audit_.open(next->settings.audit.get()));
}

void Reload::apply(Next& next) {
  const bool logs_differ = settings_.log.index() != next.settings.log.index();
  for (const std::string& key : next.changes.reloaded) {
    const config::SettingBase& setting = *next.settings.registry.find_key(key);
    (void)settings_.registry.find_key(key)->set(setting.text(), key, setting.origin());
  }
  settings_.config_file = next.settings.config_file;
  authenticator_.set(std::move(next.trust));
  admission_.set_max_sessions(static_cast<size_t>(settings_.max_sessions.get()));
  admission_.set_rules(std::move(next.rules));
  if (logs_differ) pool_.renew_idle();
}

Result<std::string> Reload::run(const std::optional<Identity>& by) {
  service_manager_.reloading();
  Result<std::string> done = run_now(by);
  service_manager_.reloaded();
  return done;
}

Result<std::string> Reload::run_now(const std::optional<Identity>& by) {
  const std::string why = by ? "as " + by->user + " requested" : "after SIGHUP";
  Next next;
  if (Status status = read(&next); !status.ok()) {
    // If an operator has asked, the caller logs the error.
    if (by)
      return std::move(status).with_context("cannot reload the settings, which keep their values");
    RCUDA_ERROR("cannot reload the settings %s; they keep their values: %s", why.c_str(),
                status.context().c_str());
    return status;
  }
  std::vector<std::string> changed = next.changes.reloaded;
  if (!admission_.rules().same_limits(next.rules)) changed.push_back("[limits]");
  const std::string restart = joined(next.changes.need_restart);
  apply(next);
  audit_.control("reload", by, {});

  std::string text = changed.empty() ? "nothing changed" : "changed: " + joined(changed);
  // The line is written if the old level or the new level allows it.
  const std::string level = settings_.log.text();
  if (!log_enabled(LogLevel::kInfo)) set_log_level(level.c_str());
  RCUDA_INFO("the settings are reloaded, %s; %s", why.c_str(), text.c_str());
  if (!restart.empty()) {
    RCUDA_WARN("changed settings that need a restart of the server: %s", restart.c_str());
    text += "; changed, but needs a restart of the server: " + restart;
  }
  const std::string more = applied_();
  if (!more.empty()) text += "; " + more;
  set_log_level(level.c_str());
  return text;
}

}  // namespace rcuda::server
