module github.com/plimsoll-io/plimsoll/test/controlplane/velero/1.10.3

go 1.26.0

require github.com/vmware-tanzu/velero v1.10.3
