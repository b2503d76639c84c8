package restore

import "context"

// mapSubjects lets a RoleBinding or ClusterRoleBinding follow its subjects into the namespaces that they are restored to.
func mapSubjects(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	for subject := range objectsOf(in.item.Object, "subjects") {
		if namespace := textOf(subject, "namespace"); namespace != "" {
			subject["namespace"] = s.targetNamespace(namespace)
		}
	}
	return actionOutput{}, nil
}
