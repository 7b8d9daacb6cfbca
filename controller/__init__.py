"""The controller: it issues broker ids, keeps SyncStateSets and master epochs in a Raft log, and elects masters."""
