module github.com/plimsoll-io/plimsoll/test/controlplane/velero/1.16.2

go 1.26.0

require github.com/vmware-tanzu/velero v1.16.2
