package repositorytask

import (
	"context"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// kind is one type of task.
type kind struct {
	// condition of the task is True only if the outcome is well, and Unknown if that is one of a sample.
	condition string
	// inSteps says that progress is counted in steps and not in bytes: none are shown.
	inSteps bool
	// selects: the task works on the PodVolumeBackups of its selection, or on their repositories.
	selects bool
	// use is what the task does with its repositories, and needs returns those before it begins. nil: processRemaining claims them.
	use   use
	needs func(*run) []v1alpha1.RepositoryKey
	// cures: the task is tried at once, whatever the breaker knows.
	cures bool
	// processRemaining does what no earlier process has done, one volume or repository after the other, each of which it writes. Its error is a
	// *RefusedError, the API server's or that of ctx: what becomes of a volume or repository is a result.
	processRemaining func(*run, context.Context) error
	// outcome sums up the results. note is what else the end of the task has to say.
	outcome func(status *v1alpha1.RepositoryTaskStatus, note string) outcome
}

// outcome is how a task ends.
type outcome struct {
	ok      bool // the task is Completed, else Failed
	reason  v1alpha1.Reason
	message string
}

// kindOf returns the kind of a task, and false for one that this version does not know.
func kindOf(spec *v1alpha1.RepositoryTaskSpec) (kind, bool) {
	switch spec.Type {
	case v1alpha1.TaskVerify:
		return kind{condition: v1alpha1.ConditionVerified, selects: true, use: useJudge, needs: (*run).volumesToRead, processRemaining: (*run).verifyVolumes, outcome: verifyOutcome}, true
	case v1alpha1.TaskCheck:
		return kind{condition: v1alpha1.ConditionChecked, inSteps: true, selects: true, use: useJudge, needs: (*run).repositoriesToDo, processRemaining: (*run).checkRepositories, outcome: checkOutcome}, true
	case v1alpha1.TaskUsage:
		return kind{condition: v1alpha1.ConditionMeasured, inSteps: true, selects: true, use: useLook, needs: (*run).repositoriesToDo, processRemaining: (*run).measureRepositories, outcome: usageOutcome}, true
	case v1alpha1.TaskForget:
		condition := v1alpha1.ConditionPlanned
		if spec.Apply {
			condition = v1alpha1.ConditionForgotten
		}
		return kind{condition: condition, inSteps: true, use: useChange, processRemaining: (*run).forgetSnapshots, outcome: forgetOutcome(spec.Apply)}, true
	case v1alpha1.TaskPrune:
		condition := v1alpha1.ConditionPlanned
		if spec.Apply {
			condition = v1alpha1.ConditionPruned
		}
		return kind{condition: condition, inSteps: true, selects: true, use: useChange, needs: (*run).repositoriesToDo, processRemaining: (*run).pruneRepositories, outcome: pruneOutcome(spec.Apply)}, true
	case v1alpha1.TaskRepair:
		return kind{condition: v1alpha1.ConditionRepaired, inSteps: true, selects: true, use: useChange, needs: (*run).repositoriesToDo, cures: true, processRemaining: (*run).repairRepositories, outcome: repairOutcome}, true
	case v1alpha1.TaskMigrate:
		condition, use := v1alpha1.ConditionMigrated, useChange
		if spec.DryRun {
			condition, use = v1alpha1.ConditionPlanned, useLook
		}
		return kind{condition: condition, selects: true, use: use, needs: (*run).migrationNeeds, processRemaining: (*run).migrate, outcome: migrateOutcome(spec.DryRun)}, true
	default:
		return kind{}, false
	}
}
