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
	// cures: the task is tried at once, whatever the breaker knows.
	cures bool
	// doWork does what no earlier process has done, one volume or repository after the other, each of which it writes. Its error is a
	// *RefusedError, the API server's or that of ctx: what becomes of a volume or repository is a result.
	doWork func(*run, context.Context) error
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
		return kind{condition: v1alpha1.ConditionVerified, selects: true, doWork: (*run).verifyVolumes, outcome: verifyOutcome}, true
	case v1alpha1.TaskCheck:
		return kind{condition: v1alpha1.ConditionChecked, inSteps: true, selects: true, doWork: (*run).checkRepositories, outcome: checkOutcome}, true
	case v1alpha1.TaskUsage:
		return kind{condition: v1alpha1.ConditionMeasured, inSteps: true, selects: true, doWork: (*run).measureRepositories, outcome: usageOutcome}, true
	case v1alpha1.TaskForget:
		condition := v1alpha1.ConditionPlanned
		if spec.Apply {
			condition = v1alpha1.ConditionForgotten
		}
		return kind{condition: condition, inSteps: true, doWork: (*run).forgetSnapshots, outcome: forgetOutcome(spec.Apply)}, true
	case v1alpha1.TaskPrune:
		condition := v1alpha1.ConditionPlanned
		if spec.Apply {
			condition = v1alpha1.ConditionPruned
		}
		return kind{condition: condition, inSteps: true, selects: true, doWork: (*run).pruneRepositories, outcome: pruneOutcome(spec.Apply)}, true
	case v1alpha1.TaskRepair:
		return kind{condition: v1alpha1.ConditionRepaired, inSteps: true, selects: true, cures: true, doWork: (*run).repairRepositories, outcome: repairOutcome}, true
	case v1alpha1.TaskMigrate:
		condition := v1alpha1.ConditionMigrated
		if spec.DryRun {
			condition = v1alpha1.ConditionPlanned
		}
		return kind{condition: condition, selects: true, doWork: (*run).migrate, outcome: migrateOutcome(spec.DryRun)}, true
	default:
		return kind{}, false
	}
}
