"""Keys of RocketMQ 5.4.0's servers that rmqha does not have: they are ignored or refused. Pure.

An ignored key is reported in the log and by `--check`. A key is refused if ignoring it would break a promise, unless
its value changes nothing. tests/golden/rocketmq-5.4.0-keys.txt has all keys of
RocketMQ; `tools/configuration_doc.py` writes this table into docs/operate/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Rule for a key. `harmless`: values with which it is ignored, all others are refused; None: it is never refused.
    `below_root`: path below storePathRootDir that is harmless too."""

    reason: str
    harmless: tuple[str, ...] | None = None
    below_root: str = ""

    def refuses(self, value: str, root: str) -> bool:
        """True if a server must not start with this value. `root`: storePathRootDir."""
        if self.harmless is None or value.strip().lower() in self.harmless:
            return False
        return not self.below_root or value.rstrip("/") != f"{root.rstrip('/')}/{self.below_root}"

    @property
    def reason_without_effect(self) -> str:
        """Reason why a value that is not refused has no effect."""
        return self.reason if self.harmless is None else "it asks for what is so anyway"


@dataclass(frozen=True, slots=True)
class _Keys:
    names: str
    rule: KeyRule

    def rules(self) -> dict[str, KeyRule]:
        return dict.fromkeys(self.names.split(), self.rule)


def _ignored(reason: str, names: str) -> _Keys:
    return _Keys(names, KeyRule(reason))


def _refused(reason: str, names: str, *harmless: str, below_root: str = "") -> _Keys:
    return _Keys(names, KeyRule(reason, harmless, below_root))


_AUTH = "org.apache.rocketmq.auth"

_NETWORK = (
    _ignored(
        "connections are served by one thread, with buffers of their own",
        """
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverWorkerThreads
        useEpollNativeSelector clientAsyncSemaphoreValue clientCallbackExecutorThreads clientOnewaySemaphoreValue
        clientPooledByteBufAllocatorEnable clientWorkerThreads disableCallbackExecutor disableNettyWorkerGroup
        """,
    ),
    _ignored(
        "buffers of sockets are the system's, and what waits to be sent is bounded for each connection",
        """
        serverSocketRcvBufSize serverSocketSndBufSize serverSocketBacklog writeBufferHighWaterMark
        writeBufferLowWaterMark clientSocketRcvBufSize clientSocketSndBufSize
        """,
    ),
    _ignored(
        "silent connections are closed, and lost ones made again, by bounds of rmqha's own",
        """
        serverChannelMaxIdleTimeSeconds channelNotActiveInterval clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout connectTimeoutMillis enableReconnectForGoAway maxReconnectIntervalTimeSeconds
        scanAvailableNameSrv
        """,
    ),
    _ignored(
        "SIGTERM always stops a server in order, within ten seconds", "enableShutdownGracefully shutdownWaitTimeSeconds"
    ),
    _refused("connections would be plain: write tls.enable=true and the keys tls.client.*", "useTLS", "false"),
    _refused("connections would not go through a proxy", "socksProxyConfig", "", "{}"),
)

_EVERYWHERE = (
    *_NETWORK,
    _ignored("files lie where the other keys say", "rocketmqHome configStorePath"),
    _ignored("only the live keys change while a server runs, and only an operator changes them", "configBlackList"),
)

_WRITTEN = "RocketMQ writes it into the files that it changes, and reads it from none"

_METRICS = _ignored(
    "metrics stand at httpPort, for Prometheus (docs/operate/metrics.md)",
    """
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
        metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsPromExporterHost metricsPromExporterPort
        """,
)

_BROKER = (
    *_EVERYWHERE,
    _METRICS,
    _ignored(
        _WRITTEN,
        """
        isBrokerContainer isInBrokerContainer isScanAvailableNameSrv timerCheckMetricsWhen timerEnableDisruptor
        timerStopDequeue timerWarmEnable
        """,
    ),
    _ignored(
        "metrics are always on (docs/operate/metrics.md)",
        """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics
        metricsOtelCardinalityLimit transactionMetricFlushInterval estimateAccumulation
        """,
    ),
    _ignored(
        "requests are worked on in one thread, as they come, and what waits is bounded for each connection",
        """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity asyncSendEnable enableFastChannelEventProcess
        """,
    ),
    _ignored(
        "only sends have a bound of waiting, waitTimeMillsInSendQueue",
        """
        brokerFastFailureEnable waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInTransactionQueue
        osPageCacheBusyTimeOutMills
        """,
    ),
    _ignored(
        "one thread appends to the log, so that there is no lock to choose",
        """
        useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree topicQueueLockNum
        debugLockEnable putMessageTimeout maxAsyncPutMessageRequests sharedByteBufferNum
        """,
    ),
    _ignored(
        "the log is read through the system's page cache, which needs no advice",
        """
        accessMessageInMemoryHotRatio cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum dataReadAheadEnable diskFallRecorded flushLeastPagesWhenWarmMapedFile
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        transferMsgByHeap warmMapedFileEnable writeWithoutMmap highSpeedMode
        """,
    ),
    _ignored(
        "reads of old messages are bounded by maxTransferBytesOnMessageInDisk, and slaves take them over",
        """
        cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable globalColdReadThreshold
        usePIDColdCtrStrategy disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold enableNetWorkFlowControl
        """,
    ),
    _ignored(
        "flushIntervalCommitLog and flushDiskType alone say when the log is synced",
        """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed commitCommitLogThoroughInterval
        wakeCommitWhenPutMessage wakeFlushWhenPutMessage fastFailIfNoBufferInStorePool enableRunningFlagsInFlush
        """,
    ),
    _ignored(
        "queues and the index are made from the log, synced with the checkpoint and mended at a start",
        """
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushIntervalConsumeQueue
        putConsumeQueueDataByFileChannel batchDispatchRequestThreadPoolNums dispatchCqCacheNum dispatchCqThreads
        dispatchFromSenderThread enableAsyncReput enableBuildConsumeQueueConcurrently
        enableLogConsumeQueueRepeatedlyBuildWhenRecover recheckReputOffsetFromCq putMsgIndexHightWater readUnCommitted
        maxConsumeQueueScan messageIndexSafe indexFileReadEnable indexFileWriteEnable sampleCountThreshold sampleSteps
        searchBcqByCacheEnable travelCqFileNumWhenGetMessage correctLogicMinOffsetForceInterval
        correctLogicMinOffsetSleepInterval deleteConsumeQueueFilesInterval enableCleanExpiredOffset
        """,
    ),
    _ignored(
        "a start reads what the checkpoint does not vouch for, and checks each record of it",
        """
        checkCRCOnRecover forceVerifyPropCRC maxChecksumRange commitLogRecoverMaxNum maxRecoveryCommitlogFiles
        enableAcceleratedRecovery recoverConcurrently recoverThreadPoolNums disappearTimeAfterStart
        startAcceptSendRequestTimeStamp
        """,
    ),
    _ignored(
        "log files are removed by deleteWhen, fileReservedTime and the disk's ratios",
        "logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum replicasPerDiskPartition",
    ),
    _ignored(
        "records are as long as RocketMQ's protocol lets them be",
        "maxTopicLength autoMessageVersionOnTopicLen",
    ),
    _ignored(
        "pulls are bounded by maxTransferCountOnMessageInMemory and the like",
        "maxMsgsNumBatch pullBatchMaxMessageCount maxFilterMessageSize defaultQueryMaxNum",
    ),
    _ignored(
        "slaves copy by rmqha's own rules (docs/start/guarantees.md)",
        """
        duplicationEnable enableBatchPush haFlowControlEnable maxSlaveResendLength offsetCheckInSlave syncFromLastFile
        syncMasterFlushOffsetWhenStartup checkSyncStateSetPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
        sendHeartbeatTimeoutMillis brokerNotActiveTimeoutMillis
        """,
    ),
    _ignored(
        "slaves do not act for a master: the controllers elect another; in a static group delayed messages,"
        " transactions and what is locked wait for the master",
        """
        enableSlaveActingMaster enableRemoteEscape skipPreOnline syncBrokerMemberGroupPeriod inBrokerContainer
        brokerConfigPath compatibleWithOldNameSrv forwardTimeout
        """,
    ),
    _ignored(
        "a broker registers all its topics in one request, at once when they change",
        """
        forceRegister enableSingleTopicRegister enableSplitRegistration splitRegistrationSize enableSplitMetadata
        splitMetadataSize registerBrokerTimeoutMills  loadBalancePollNameServerInterval
        enableRegisterProducer
        """,
    ),
    _ignored(
        "tables are kept in files that are written when they change",
        """
        flushConsumerOffsetInterval flushConsumerOffsetHistoryInterval consumerOffsetUpdateVersionStep
        delayOffsetUpdateVersionStep flushDelayOffsetInterval configManagerVersion realTimePersistRocksDBConfig
        """,
    ),
    _ignored(
        "RocksDB is not used",
        """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin enableRocksDBLog
        indexRocksDBEnable maxRocksDBIndexQueryDays memTableFlushIntervalMs rocksdbCompressionType
        rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold rocksdbCQDoubleWriteEnable statRocksDBCQIntervalSec
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType timerRocksDBPrecisionMs
        timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan
        timerRocksDBTimeExpiredMaxTps transWriteOriginTransHalfEnable
        """,
    ),
    _ignored(
        "pop is bounded and answered by rmqha's own rules (docs/use/compatibility.md)",
        """
        appendAckAsync appendCkAsync enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
        enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enableRetryTopicV2
        enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem maxPopPollingSize popCkMaxBufferSize
        popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
        popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
        popFromRetryProbabilityForPriority popInflightMessageThreshold popLongPollingForceNotifyInterval
        popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize popResponseReturnActualRetryTopic
        popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1
        reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime skipWhenCKRePutReachMaxTimes
        useSeparateRetryQueue priorityOrderAsc defaultMessageRequestMode defaultPopShareQueueNum
        serverLoadBalancerEnable
        """,
    ),
    _ignored(
        "timer messages are kept and delivered by rmqha's own rules: none is dropped, none comes early",
        """
        appendTopicForTimerDeleteKey timerColdDataCheckIntervalMs timerCongestNumEachSlot
        timerEnableCheckMetrics timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
        timerInterceptDelayLevel timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum
        timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerRollWindowSlot timerSkipUnknownError
        timerStopEnqueue timerWheelSnapshotFlush timerWheelSnapshotIntervalMs
        allowRecallWhenBrokerNotWriteable
        """,
    ),
    _ignored(
        "delayed messages are delivered one after the other for each level, and tried until they are stored",
        """
        enableScheduleAsyncDeliver enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked
        """,
    ),
    _ignored(
        "ends of transactions are gathered by rmqha's own rules", "transactionOpBatchInterval transactionOpMsgMaxSize"
    ),
    _ignored(
        "consumers that filter by properties are served without bit maps",
        """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan
        filterSupportRetry maxErrorRateOfBloomFilter mappedFileSizeConsumeQueueExt
        """,
    ),
    _ignored(
        "a topic with cleanup.policy=COMPACTION is refused",
        """
        enableCompaction compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        compactionThreadNum maxOffsetMapSize
        """,
    ),
    _ignored(
        "statistics are always kept and forgotten by rmqha's own rules",
        """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount commercialSizePerMsg
        enableDetailStat enableLmqStats maxStatsIdleTimeInMinutes printChannelGroups printChannelGroupsMinNum
        isolateLogEnable
        """,
    ),
    _ignored(
        "clients that are silent are forgotten, and members told of a change, by rmqha's own rules",
        """
        channelExpiredTimeout subscriptionExpiredTimeout realTimeNotifyConsumerChange notifyConsumerIdsChangedEnable
        lockInStrictMode
        """,
    ),
    _ignored("a pull that finds nothing waits as long as its client asks", "longPollingEnable shortPollingTimeMills"),
    _ignored(
        "every kind of request that this broker knows is served to clients with the right to it",
        """
        litePullMessageEnable rejectPullConsumerEnable storeReplyMessageEnable enableMixedMessageType
        validateSystemTopicWhenUpdateTopic enableCreateSysGroup useStaticSubscription
        """,
    ),
    _ignored(
        "consumers that broadcast keep their offsets themselves",
        "broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore",
    ),
    _ignored(
        "topics named as the cluster and the broker are always there, readable and writable",
        "brokerTopicEnable clusterTopicEnable",
    ),
    _ignored("another topic for traces is one like any other: make it", "msgTraceTopicName"),
    _ignored("deleting a topic leaves the retry topics of its groups", "clearRetryTopicWhenDeleteTopic"),
    _ignored("replicas are cleaned by an operator: rmqha remove", "cleanOfflineBrokerInterval"),
    _ignored("light queues are refused by enableLmq", "maxLmqConsumeQueueNum"),
    _ignored(
        "DLedger's log is not used; enableDLegerCommitLog=true is refused",
        "dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId storePathDLedgerCommitLog",
    ),
    _ignored(
        "users and policies are kept in config/auth.json, and each request is checked",
        """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationStrategy
        authorizationStrategy clusterName configName statefulAuthenticationCacheExpiredSecond
        statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
        """,
    ),
    _ignored("accounts of plain_acl.yml are taken over by an operator", "migrateAuthFromV1Enabled"),
    _ignored("addresses are asked for again by rmqha's own rules", "fetchNamesrvAddrInterval"),
    _ignored(
        "RocketMQ 5.4.0 does not read it either: a key of older releases",
        """
        storePathConsumeQueue storePathIndex storeCheckpoint abortFile mapedFileSizeCommitLog
        mapedFileSizeConsumeQueue checkTransactionMessageEnable sendThreadPoolNums pullThreadPoolNums filterServerNums
        defaultReadQueueNums defaultWriteQueueNums
        """,
    ),
    _refused("DLedger's log has another form, and its messages would not be seen", "enableDLegerCommitLog", "false"),
    _refused(
        "queues would be in RocksDB, which is not used; a store of Apache's made so must be converted first",
        "storeType",
        "default",
    ),
    _refused(
        "half messages, timers or tables would be in RocksDB, where this broker does not see them",
        "transRocksDBEnable timerRocksDBEnable useSingleRocksDBForAllConfigs",
        "false",
    ),
    _refused("messages would not reach their light queues", "enableLmq enableMultiDispatch", "false"),
    _refused("queues would hold places in files that this broker does not read", "enableConsumeQueueExt", "false"),
    _refused("messages that the plug-in keeps would not be seen", "messageStorePlugIn", ""),
    _refused(
        "messages in those directories would not be seen: move the files below", "readOnlyCommitLogStorePaths", ""
    ),
    _refused(
        "the log lies in storePathRootDir: set that, or link the directory",
        "storePathCommitLog",
        "",
        below_root="commitlog",
    ),
    _refused(
        "the file lies in storePathRootDir: move it there",
        "storePathEpochFile",
        "",
        below_root="epochFileCheckpoint",
    ),
    _refused(
        "the file lies in storePathRootDir: move it there",
        "storePathBrokerIdentity",
        "",
        below_root="brokerIdentity",
    ),
    _ignored(
        "host names in namesrvAddr and controllerAddr are looked up in any case",
        "fetchNameSrvAddrByDnsLookup fetchControllerAddrByDnsLookup",
    ),
    _refused(
        "requests would not be checked by that class",
        "authenticationProvider",
        "",
        f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider".lower(),
    ),
    _refused(
        "requests would not be checked by that class",
        "authorizationProvider",
        "",
        f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider".lower(),
    ),
    _refused(
        "users would not be asked of that class",
        "authenticationMetadataProvider",
        "",
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider".lower(),
    ),
    _refused(
        "policies would not be asked of that class",
        "authorizationMetadataProvider",
        "",
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider".lower(),
    ),
)

_ELECTIONS = (
    _METRICS,
    _ignored(
        "requests are worked on in one thread, as they come",
        "controllerThreadPoolNums controllerRequestThreadPoolQueueCapacity processReadEvent",
    ),
    _ignored(_WRITTEN, "isProcessReadEvent"),
    _ignored("an election is tried until there is a master", "electMasterMaxRetryCount"),
    _ignored("the controllers' log is one of rmqha's own", "mappedFileSize jraftConfig"),
    _refused("the controllers are named by controllerDLegerPeers alone", "controllerType", "dledger"),
)
_CONTROLLER = (
    *_EVERYWHERE,
    *_ELECTIONS,
    _ignored("the port stands in controllerDLegerPeers", "listenPort"),
)

_NAME_SERVER = (
    *_EVERYWHERE,
    *_ELECTIONS,
    _ignored(
        "requests are worked on in one thread, as they come",
        """
        clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolNums
        defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity
        """,
    ),
    _ignored("routes are told as soon as there are some", "needWaitForService waitSecondsForService"),
    _ignored("a topic that is not known is asked of no other cluster", "clusterTest productEnvName"),
    _ignored("accounts decide which topics a client sees", "enableAllTopicList enableTopicList"),
    _ignored("slaves do not act for a master", "supportActingMaster notifyMinBrokerIdChanged"),
    _ignored(
        "a registration says all topics of its broker, and takes away what it does not say",
        "deleteTopicWithBrokerRegistration",
    ),
    _ignored("brokers do not ask for it", "returnOrderTopicConfigToBroker"),
)


def _table(groups: tuple[_Keys, ...]) -> dict[str, KeyRule]:
    found: dict[str, KeyRule] = {}
    for group in groups:
        for name, rule in group.rules().items():
            assert name not in found, name
            found[name] = rule
    return found


RULES: Mapping[str, Mapping[str, KeyRule]] = {
    "broker.conf": _table(_BROKER),
    "controller.conf": _table(_CONTROLLER),
    "namesrv.conf": _table(_NAME_SERVER),
}
"""Rules by the file of a server, and by key."""
