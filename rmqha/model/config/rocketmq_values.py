"""Keys in the answers of RocketMQ 5.4.0's servers about their configuration (requests 26, 319 and 1010). Pure.

RocketMQ's own tools read these keys and count them, so `rocketmq_values` returns exactly these. A key without effect
here has the value of the server's file, or else RocketMQ's default, as in RocketMQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from rmqha.model.config.base import Config

_BROKER = """
    accessMessageInMemoryHotRatio=26 accessMessageInMemoryMaxRatio accountStatsEnable=true
    accountStatsPrintZeroValues=true ackMessageThreadPoolNums=16 ackThreadPoolQueueCapacity=100000 aclEnable
    adminBrokerThreadPoolNums=16 adminBrokerThreadPoolQueueCapacity=10000 allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable=true appendAckAsync=false appendCkAsync=false
    appendTopicForTimerDeleteKey=false asyncLearner asyncSendEnable=true autoCreateSubscriptionGroup
    autoCreateTopicEnable autoDeleteUnusedStats=true autoMessageVersionOnTopicLen=true
    batchDispatchRequestThreadPoolNums=16 bindAddress bitMapLengthConsumeQueueExt=112
    bottomMostCompressionTypeForConsumeQueueStore=zstd broadcastOffsetExpireMaxSecond=300
    broadcastOffsetExpireSecond=120 brokerClusterName brokerElectionPriority brokerFastFailureEnable=true
    brokerHeartbeatInterval brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis=10000
    brokerPermission brokerRole brokerTopicEnable=true cgColdReadThreshold=3145728 channelExpiredTimeout=120000
    channelNotActiveInterval=60000 checkCRCOnRecover=true checkSyncStateSetPeriod=5000 cleanFileForciblyEnable
    cleanOfflineBrokerInterval=30000 cleanResourceInterval cleanRocksDBDirtyCQIntervalMin=60
    cleanSwapedMapInterval=300000 clearRetryTopicWhenDeleteTopic=true clientAsyncSemaphoreValue=65535
    clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true clientManageThreadPoolNums=32
    clientManagerThreadPoolQueueCapacity=1000000 clientOnewaySemaphoreValue=65535
    clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0 clientSocketSndBufSize=0 clientWorkerThreads=4
    clusterTopicEnable=true coldCtrStrategyEnable=false coldDataFlowControlEnable=false coldDataScanEnable=false
    combineAssignOffsetCQType=default combineCQEnableCheckSelf=false combineCQLoadingCQTypes=default;defaultRocksDB
    combineCQMaxExtraSearchCommitLogFiles=3 combineCQPreferCQType=default commercialBaseCount=1
    commercialSizePerMsg=4096 commitCommitLogLeastPages commitCommitLogThoroughInterval=200 commitIntervalCommitLog
    commitLogForceSwapMapInterval=43200000 commitLogRecoverMaxNum=10 commitLogSwapMapInterval=3600000
    commitLogSwapMapReserveFileNum=100 compactionCqMappedFileSize=10485760 compactionMappedFileSize=104857600
    compactionScheduleInternal=900000 compactionThreadNum=6 compatibleWithOldNameSrv=true compressedRegister
    configBlackList=configBlackList;brokerConfigPath configManagerVersion=v1 connectTimeoutMillis=3000
    consumerFallbehindThreshold=17179869184 consumerManageThreadPoolNums=32
    consumerManagerThreadPoolQueueCapacity=1000000 consumerOffsetUpdateVersionStep=500 controllerAddr
    controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval=300000 correctLogicMinOffsetSleepInterval=1
    dataReadAheadEnable=true debugLockEnable=false defaultMessageRequestMode=PULL defaultPopShareQueueNum=-1
    defaultQueryMaxNum=32 defaultTopicQueueNums delayOffsetUpdateVersionStep=200 deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval=100 deleteFileBatchMax deleteWhen destroyMapedFileIntervalForcibly
    disableCallbackExecutor=false disableConsumeIfConsumerReadSlowly=false disableNettyWorkerGroup=false
    disappearTimeAfterStart=-1 diskFallRecorded=true diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio dispatchCqCacheNum=4096 dispatchCqThreads=10 dispatchFromSenderThread=false
    duplicationEnable=false enableAcceleratedRecovery=false enableAsyncReput=true enableAutoInSyncReplicas
    enableBatchPush=false enableBroadcastOffsetStore=true enableBuildConsumeQueueConcurrently=false
    enableCalcFilterBitMap=false enableCleanExpiredOffset=false enableCompaction=true enableConnectionMetrics=true
    enableConsumeQueueExt=false enableControllerMode enableCreateSysGroup=true enableDLegerCommitLog=false
    enableDetailStat=true enableFastChannelEventProcess=false enableLagAndDlqMetrics=true enableLmq=false
    enableLmqStats=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false enableMessageStoreMetrics=true
    enableMixedMessageType=false enableMultiDispatch=false enableNetWorkFlowControl=false
    enableNotifyAfterPopOrderLockRelease=true enableNotifyBeforePopCalculateLag=true enablePopBatchAck=false
    enablePopBufferMerge=false enablePopLog=false enablePopMessageThreshold=false enablePopMetrics=true
    enablePropertyFilter enableReconnectForGoAway=true enableRegisterProducer=true enableRemoteEscape=false
    enableRemotingMetrics=true enableRequestMetrics=true enableRetryTopicV2=false enableRocksDBLog=false
    enableRunningFlagsInFlush=false enableScheduleAsyncDeliver=false enableScheduleMessageStats=true
    enableShutdownGracefully=false enableSingleTopicRegister=false enableSkipLongAwaitingAck=false
    enableSlaveActingMaster=false enableSplitMetadata=true enableSplitRegistration=false enableStatsMetrics=true
    enableTransactionMetrics=true enabledAppendPropCRC endTransactionPoolQueueCapacity=100000
    estimateAccumulation=true expectConsumerNumUseFilter=32 fastFailIfNoBufferInStorePool=false
    fetchControllerAddrByDnsLookup=false fetchNameSrvAddrByDnsLookup=false fetchNamesrvAddrByAddressServer
    fetchNamesrvAddrInterval=10000 fileReservedTime filterDataCleanTimeSpan=86400000 filterSupportRetry=false
    flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true
    flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000 flushConsumerOffsetHistoryInterval=60000
    flushConsumerOffsetInterval=5000 flushDelayOffsetInterval=10000 flushDiskType flushIntervalCommitLog
    flushIntervalConsumeQueue=1000 flushLeastPagesWhenWarmMapedFile=4096 forceRegister=true forceVerifyPropCRC=false
    forwardTimeout=3000 globalColdReadThreshold=104857600 haFlowControlEnable=false haHousekeepingInterval
    haListenPort haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haTransferBatchSize
    heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false inSyncReplicas indexFileReadEnable=true
    indexFileWriteEnable=true indexRocksDBEnable=false initPopOffsetByCheckMsgInMem=true isBrokerContainer=false
    isInBrokerContainer=false isScanAvailableNameSrv=true isolateLogEnable=false listenPort
    litePullMessageEnable=true litePullThreadPoolQueueCapacity=100000 loadBalancePollNameServerInterval=30000
    loadBalanceProcessorThreadPoolNums=32 loadBalanceThreadPoolQueueCapacity=100000 lockInStrictMode=false
    logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
    logicalDiskSpaceCleanForciblyThreshold=0.8 longPollingEnable=true mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt=50331648 mappedFileSizeTimerLog
    mappedFileSwapEnable=true mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests=5000
    maxBatchDeleteFilesNum=50 maxChecksumRange=1073741824 maxConsumeQueueScan=20000 maxErrorRateOfBloomFilter=20
    maxFilterMessageSize=16000 maxHaTransferByteInSecond maxHashSlotNum maxIndexNum maxLmqConsumeQueueNum=20000
    maxMessageSize maxMsgsNumBatch=64 maxOffsetMapSize=104857600 maxPopPollingSize=100000
    maxReconnectIntervalTimeSeconds=60 maxRecoveryCommitlogFiles=30 maxRocksDBIndexQueryDays=7
    maxSlaveResendLength=268435456 maxStatsIdleTimeInMinutes=-1 maxTopicLength=127 maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory
    memTableFlushIntervalMs=3600000 messageDelayLevel messageIndexEnable messageIndexSafe=false messageStorePlugIn=
    metricGrpcExporterIntervalInMills=60000 metricGrpcExporterTimeOutInMills=3000
    metricLoggingExporterIntervalInMills=10000 metricsExporterType=DISABLE metricsGrpcExporterHeader=
    metricsGrpcExporterTarget= metricsInDelta=false metricsLabel= metricsOtelCardinalityLimit=50000
    metricsPromExporterHost= metricsPromExporterPort=5557 minInSyncReplicas msgTraceTopicName=RMQ_SYS_TRACE_TOPIC
    namesrvAddr notifyConsumerIdsChangedEnable=true offsetCheckInSlave=false osPageCacheBusyTimeOutMills=1000
    popCkMaxBufferSize=200000 popCkOffsetMaxQueueSize=20000 popCkStayBufferTime=10000 popCkStayBufferTimeOut=3000
    popConsumerFSServiceInit=true popConsumerKVServiceEnable=false popConsumerKVServiceInit=false
    popConsumerKVServiceLog=false popFromRetryProbability=20 popFromRetryProbabilityForPriority=0
    popInflightMessageThreshold=10000 popLongPollingForceNotifyInterval=800 popPollingMapExpireTimeSeconds=600
    popPollingMapSize=100000 popPollingSize=1024 popResponseReturnActualRetryTopic=false popReviveConcurrency=32
    popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384 printChannelGroups=false
    printChannelGroupsMinNum=5 priorityOrderAsc=true pullBatchMaxMessageCount=160 pullThreadPoolQueueCapacity=100000
    putConsumeQueueDataByFileChannel=true putMessageTimeout=8000 putMsgIndexHightWater=600000
    putThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000 readUnCommitted=false
    realTimeNotifyConsumerChange=true realTimePersistRocksDBConfig=true recallMessageEnable
    recheckReputOffsetFromCq=false recoverConcurrently=false recoverThreadPoolNums=32 redeleteHangedFileInterval
    regionId registerBrokerTimeoutMills=24000 registerNameServerPeriod rejectPullConsumerEnable=false
    rejectTransactionMessage replicasPerDiskPartition=1 replyThreadPoolQueueCapacity=10000
    retrieveMessageFromPopRetryTopicV1=true reviveAckWaitMs=180000 reviveInterval=1000 reviveMaxSlow=3
    reviveQueueNum=8 reviveScanTime=10000 rocketmqHome= rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4
    rocksdbFlushWalFrequency=1024 rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000 sampleSteps=32
    scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3 searchBcqByCacheEnable=true
    sendHeartbeatTimeoutMillis=1000 sendThreadPoolQueueCapacity=10000 serverAsyncSemaphoreValue=64
    serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120 serverLoadBalancerEnable=true
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true
    serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0
    serverWorkerThreads=8 sharedByteBufferNum=16 shortPollingTimeMills=1000 shutdownWaitTimeSeconds=30
    skipPreOnline=false skipWhenCKRePutReachMaxTimes=false slaveReadEnable slaveTimeout socksProxyConfig={}
    spinLockCollisionRetreatOptimalDegree=1000 splitMetadataSize=2000 splitRegistrationSize=800
    startAcceptSendRequestTimeStamp=0 statRocksDBCQIntervalSec=10 storePathRootDir storeReplyMessageEnable=true
    storeType=default subscriptionExpiredTimeout=600000 syncBrokerMemberGroupPeriod=1000
    syncBrokerMetadataPeriod=5000 syncControllerMetadataPeriod=10000 syncFlushTimeout syncFromLastFile=false
    syncMasterFlushOffsetWhenStartup=false timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000
    timerCongestNumEachSlot=2147483647 timerEnableCheckMetrics=true timerEnableDisruptor=false
    timerEnableRetryUntilSuccess=false timerFlushIntervalMs=1000 timerGetMessageThreadNum=3
    timerInterceptDelayLevel=false timerMaxDelaySec timerMetricSmallThreshold=1000000 timerPrecisionMs
    timerProgressLogIntervalMs=10000 timerPutMessageThreadNum=3 timerRecallToTimeWheelEnable=true
    timerRecallToTimelineEnable=true timerRocksDBEnable=false timerRocksDBPrecisionMs=1000
    timerRocksDBRollIntervalHours=1 timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2
    timerRocksDBStopScan=false timerRocksDBTimeExpiredMaxTps=200000.0 timerRollWindowSlot=172800
    timerSkipUnknownError=false timerStopDequeue=false timerStopEnqueue=false timerWarmEnable=false timerWheelEnable
    timerWheelSnapshotFlush=false timerWheelSnapshotIntervalMs=10000 topicQueueLockNum=32 totalReplicas traceOn
    traceTopicEnable transRocksDBEnable=false transWriteOriginTransHalfEnable=true transactionCheckInterval
    transactionCheckMax transactionMetricFlushInterval=10000 transactionOpBatchInterval=3000
    transactionOpMsgMaxSize=4096 transactionTimeOut transferMsgByHeap=true transientStorePoolEnable
    transientStorePoolSize travelCqFileNumWhenGetMessage=1 updateNameServerAddrPeriod useABSLock=false
    useEpollNativeSelector=false usePIDColdCtrStrategy=true useReentrantLockWhenPutMessage=true
    useSeparateRetryQueue=false useServerSideResetOffset useSingleRocksDBForAllConfigs=false
    useStaticSubscription=false validateSystemTopicWhenUpdateTopic=true waitTimeMillsInAckQueue=3000
    waitTimeMillsInAdminBrokerQueue=5000 waitTimeMillsInHeartbeatQueue=31000 waitTimeMillsInLitePullQueue=5000
    waitTimeMillsInPullQueue=5000 waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue=3000
    wakeCommitWhenPutMessage=true wakeFlushWhenPutMessage=false warmMapedFileEnable=false writeBufferHighWaterMark=0
    writeBufferLowWaterMark=0 writeWithoutMmap=false
"""
_NAME_SERVER = """
    bindAddress clientRequestThreadPoolNums=8 clientRequestThreadPoolQueueCapacity=50000 clusterTest=false
    configBlackList=configBlackList;configStorePath;kvConfigPath configStorePath= defaultThreadPoolNums=16
    defaultThreadPoolQueueCapacity=10000 deleteTopicWithBrokerRegistration=false enableAllTopicList=true
    enableControllerInNamesrv enableShutdownGracefully=false enableTopicList=true kvConfigPath listenPort
    needWaitForService=false notifyMinBrokerIdChanged=false orderMessageEnable productEnvName=center
    returnOrderTopicConfigToBroker=true rocketmqHome= scanNotActiveBrokerInterval serverAsyncSemaphoreValue=64
    serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120 serverNettyWorkerGroupEnable=true
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3
    serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8
    shutdownWaitTimeSeconds=30 supportActingMaster=false unRegisterBrokerQueueCapacity=3000
    useEpollNativeSelector=false waitSecondsForService=45 writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
"""
_CONTROLLER = """
    bindAddress configBlackList=configBlackList;configStorePath configStorePath= controllerDLegerGroup
    controllerDLegerPeers controllerDLegerSelfId controllerRequestThreadPoolQueueCapacity=50000 controllerStorePath
    controllerThreadPoolNums=16 controllerType=DLedger electMasterMaxRetryCount=3 enableElectUncleanMaster
    enableShutdownGracefully=false isProcessReadEvent=false
    jraftConfig=org.apache.rocketmq.common.JraftConfig@00000000 listenPort mappedFileSize=1073741824
    metricGrpcExporterIntervalInMills=60000 metricGrpcExporterTimeOutInMills=3000
    metricLoggingExporterIntervalInMills=10000 metricsExporterType=DISABLE metricsGrpcExporterHeader=
    metricsGrpcExporterTarget= metricsInDelta=false metricsLabel= metricsPromExporterHost=
    metricsPromExporterPort=5557 notifyBrokerRoleChanged rocketmqHome= scanInactiveMasterInterval
    scanNotActiveBrokerInterval serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0
    serverChannelMaxIdleTimeSeconds=120 serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256
    serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3 serverSocketBacklog=1024
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8 shutdownWaitTimeSeconds=30
    useEpollNativeSelector=false writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
"""
_WHEN_GIVEN = """
    authenticationEnabled authenticationWhitelist authorizationEnabled authorizationWhitelist brokerConfigPath
    dLegerGroup dLegerPeers dLegerSelfId haMasterAddress initAuthenticationUser innerClientAuthenticationCredentials
    preferredLeaderId readOnlyCommitLogStorePaths storePathBrokerIdentity storePathCommitLog
    storePathDLedgerCommitLog storePathEpochFile
"""
"""Keys without a default: they are in the answer if the server's file has them."""
_PRINTED: Final[Mapping[str, str]] = {
    "broker.conf": _BROKER,
    "controller.conf": _CONTROLLER,
    "namesrv.conf": _NAME_SERVER,
}


def rocketmq_values(config: Config, known: Mapping[str, str], processor_count: int = 1) -> dict[str, str]:
    """Keys and values that RocketMQ's server of that kind would answer if it were started with the same file. `config`:
    that of a broker, name server or controller. `known`: values of keys for which rmqha has other keys. RocketMQ's
    default sizes of thread pools depend on `processor_count`."""
    own, aliases, given = config.to_properties(), type(config).aliases, dict(config.given)
    own |= {key: own[name] for key, name in aliases.items()} | dict(known)
    sizes = {key: str(size(processor_count)) for key, size in _POOL_SIZES.items()}
    told = {
        key: own[key] if key in own else given.get(key, default or sizes.get(key, ""))
        for key, default in _defaults(config.file_name).items()
    }
    others = (key for key in given if key not in told and (key in _names() or key in config.foreign_keys()))
    return told | {key: own.get(key, given[key]) for key in others}


@cache
def _defaults(file_name: str) -> Mapping[str, str]:
    """RocketMQ's default by key; "" for keys of which rmqha has its own value."""
    words = (word.partition("=") for word in _PRINTED[file_name].split())
    found = {key: value for key, _, value in words}
    return found | dict.fromkeys((*_POOL_SIZES, "useTLS"), "") if file_name == "broker.conf" else found


@cache
def _names() -> frozenset[str]:
    """Keys of all of RocketMQ's servers: a name server's file may contain those of its controller."""
    return frozenset(_WHEN_GIVEN.split()).union(*map(_defaults, _PRINTED))


_POOL_SIZES: Final[Mapping[str, Callable[[int], int]]] = {
    "clientCallbackExecutorThreads": lambda count: count,
    "endTransactionThreadPoolNums": lambda count: max(8 + 2 * count, 4 * min(count, 4)),
    "heartbeatThreadPoolNums": lambda count: min(count, 32),
    "litePullMessageThreadPoolNums": lambda count: 16 + 2 * count,
    "processReplyMessageThreadPoolNums": lambda count: 16 + 2 * count,
    "pullMessageThreadPoolNums": lambda count: 16 + 2 * count,
    "putMessageFutureThreadPoolNums": lambda count: min(count, 4),
    "queryMessageThreadPoolNums": lambda count: 8 + count,
    "sendMessageThreadPoolNums": lambda count: min(count, 4),
}
"""RocketMQ's default sizes of thread pools, as functions of the number of processors."""
