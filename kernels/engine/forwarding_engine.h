// An engine that forwards every operation to another one, so that work takes the same path as
// without it. Tests and scenarios override what they want to watch or to disturb.
#pragma once

#include <string>
#include <utility>

#include "kernels/engine/engine.h"

namespace quantgate {

class ForwardingEngine : public Engine {
 public:
  explicit ForwardingEngine(Engine& engine) : engine_(engine) {}
  ForwardingEngine(const ForwardingEngine&) = delete;  // Would copy instead of wrapping.
  ForwardingEngine& operator=(const ForwardingEngine&) = delete;
  Engine& forwarded() { return engine_; }

#define QG_ENGINE_QUERY(result, Name, parameters, arguments) \
  result Name parameters override { return engine_.Name arguments; }
#define QG_ENGINE_OPERATION(result, Name, parameters, arguments) \
  result Name parameters override {                              \
    const Operation operation(*this, #Name);                     \
    return Watched(engine_.Name arguments);                      \
  }
#include "kernels/engine/operations.inc"

  /// The name under which OnOperation is told that a report is read which was begun before.
  static constexpr char kReadReport[] = "ReadReport";

 protected:
  /// Called before each operation with the name of its function.
  virtual void OnOperation(const std::string& name) {}
  /// Called after each operation.
  virtual void AfterOperation(const std::string& name) {}

 private:
  /// Calls OnOperation and AfterOperation around an operation.
  class Operation {
   public:
    Operation(ForwardingEngine& engine, std::string name)
        : engine_(engine), name_(std::move(name)) {
      engine_.OnOperation(name_);
    }
    ~Operation() { engine_.AfterOperation(name_); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    ForwardingEngine& engine_;
    const std::string name_;
  };

  template <typename Result>
  Result Watched(Result result) {
    return result;
  }
  template <typename Report>
  absl::StatusOr<Deferred<Report>> Watched(absl::StatusOr<Deferred<Report>> started) {
    if (!started.ok()) return started.status();
    return Deferred<Report>([this, read = *std::move(started)]() mutable {
      const Operation operation(*this, kReadReport);
      return std::move(read)();
    });
  }

  Engine& engine_;
};

}  // namespace quantgate
