package volume

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDirOf(t *testing.T) {
	t.Parallel()
	const csiDriver = "ebs.csi.aws.com"
	block := corev1.PersistentVolumeBlock
	filesystem := corev1.PersistentVolumeFilesystem
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-0"}}
	pv := func(source corev1.PersistentVolumeSource, annotations map[string]string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-1234", Annotations: annotations},
			Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: source, VolumeMode: &filesystem},
		}
	}
	blockPV := pv(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver}}, nil)
	blockPV.Spec.VolumeMode = &block
	noMode := pv(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil)
	noMode.Spec.VolumeMode = nil
	badName := pv(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil)
	badName.Name = "../../../etc"

	memory := func(medium corev1.StorageMedium) corev1.VolumeSource {
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
	}

	tests := map[string]struct {
		source  corev1.VolumeSource
		pv      *corev1.PersistentVolume
		want    Dir
		wantErr error
	}{
		"emptyDir":                {source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, want: Dir{Name: "data"}},
		"emptyDir in memory":      {source: memory(corev1.StorageMediumMemory), want: Dir{Name: "data", Mounted: true}},
		"emptyDir of huge pages":  {source: memory(corev1.StorageMediumHugePages), want: Dir{Name: "data", Mounted: true}},
		"emptyDir of 1 GiB pages": {source: memory(corev1.StorageMediumHugePagesPrefix + "1Gi"), want: Dir{Name: "data", Mounted: true}},
		"configMap":               {source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, want: Dir{Name: "data"}},
		"secret":                  {source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, want: Dir{Name: "data"}},
		"projected":               {source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, want: Dir{Name: "data"}},
		"downwardAPI":             {source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, want: Dir{Name: "data"}},
		"nfs":                     {source: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, want: Dir{Name: "data", Mounted: true}},
		"iscsi":                   {source: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}, want: Dir{Name: "data", Mounted: true}},
		"inline CSI": {
			source: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: csiDriver}},
			want:   Dir{Name: "data", CSI: true, Mounted: true},
		},
		"hostPath": {
			source:  corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}},
			wantErr: ErrNoHostDirectory,
		},
		"image": {
			source:  corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "models:1"}},
			wantErr: ErrNoHostDirectory,
		},
		"CSI PV": {
			source: claim,
			pv:     pv(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "unknown"}}, nil),
			want:   Dir{Name: "pvc-1234", CSI: true, Mounted: true},
		},
		"generic ephemeral": {
			source: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}},
			pv:     pv(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver}}, nil),
			want:   Dir{Name: "pvc-1234", CSI: true, Mounted: true},
		},
		"local PV": {
			source: claim,
			pv:     pv(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/ssd"}}, nil),
			want:   Dir{Name: "pvc-1234", Mounted: true},
		},
		"PV without volume mode": {source: claim, pv: noMode, want: Dir{Name: "pvc-1234", Mounted: true}},
		"in-tree PV provisioned by a CSI driver": {
			source: claim,
			pv: pv(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}},
				map[string]string{annotationProvisionedBy: csiDriver}),
			want: Dir{Name: "pvc-1234", CSI: true, Mounted: true},
		},
		"in-tree PV migrated to a CSI driver": {
			source: claim,
			pv: pv(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}},
				map[string]string{annotationProvisionedBy: "kubernetes.io/aws-ebs", annotationMigratedTo: csiDriver}),
			want: Dir{Name: "pvc-1234", CSI: true, Mounted: true},
		},
		"in-tree PV with a driver that does not exist": {
			source: claim,
			pv: pv(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}},
				map[string]string{annotationProvisionedBy: "kubernetes.io/aws-ebs"}),
			want: Dir{Name: "pvc-1234", Mounted: true},
		},
		"block PV": {source: claim, pv: blockPV, wantErr: ErrBlockVolume},
		"hostPath PV": {
			source:  claim,
			pv:      pv(corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}, nil),
			wantErr: ErrNoHostDirectory,
		},
		"claim not bound": {source: claim, wantErr: ErrNotBound},
		"hostile PV name": {source: claim, pv: badName, wantErr: ErrBadName},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vol := &corev1.Volume{Name: "data", VolumeSource: tt.source}
			got, err := DirOf(vol, tt.pv, func(driver string) bool { return driver == csiDriver })
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDirOfRefusesHostileVolumeNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b"} {
		if _, err := DirOf(&corev1.Volume{Name: name}, nil, nil); !errors.Is(err, ErrBadName) {
			t.Errorf("volume name %q: error %v, want %v", name, err, ErrBadName)
		}
	}
}

func TestClaimName(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		source corev1.VolumeSource
		want   string
		wantOK bool
	}{
		"claim": {
			source: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-0"}},
			want:   "data-0", wantOK: true,
		},
		"generic ephemeral": {
			source: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}},
			want:   "web-0-scratch", wantOK: true,
		},
		"emptyDir": {source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := ClaimName("web-0", &corev1.Volume{Name: "scratch", VolumeSource: tt.source})
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("got %q, %v, want %q, %v", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}
