package v1alpha1

// Comparison is the document of AnnotationComparison: what a node agent has found when it compared a restored volume with the snapshot.
//
// +kubebuilder:object:generate=false
type Comparison struct {
	Files       int64            `json:"files"`                 // files with the content that the repository has
	Bytes       int64            `json:"bytes"`                 // their size
	Mismatched  int64            `json:"mismatched"`            // files, links, directories and FIFOs that are missing, too many, or otherwise than recorded
	Differences map[string]int64 `json:"differences,omitempty"` // how many of these differ in what, such as owner; one may differ in several respects
	Paths       []string         `json:"paths,omitempty"`       // some of the mismatched
	Example     string           `json:"example,omitempty"`     // what is wrong with one of them
}
