CREATE TABLE "experiments" (
	experiment_id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	artifact_location VARCHAR(256), 
	lifecycle_stage VARCHAR(32), 
	creation_time BIGINT, 
	last_update_time BIGINT, 
	workspace VARCHAR(63) DEFAULT 'default' NOT NULL, 
	CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), 
	CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT uq_experiments_workspace_name UNIQUE (workspace, name)
);
INSERT INTO "experiments" VALUES(0,'Default','/data/mlruns/0','active',1795335397416,1795335397416,'default');
INSERT INTO "experiments" VALUES(1,'images','/data/mlruns/1','active',1795335397419,1795335397419,'default');
CREATE TABLE "metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	step BIGINT DEFAULT '0' NOT NULL, 
	is_nan BOOLEAN DEFAULT '0' NOT NULL, 
	CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "metrics" VALUES('val_top1',0.5,1700000060000,'0dd195cdbdf44df28d443a503d347a56',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.9,1700000120000,'0dd195cdbdf44df28d443a503d347a56',2,0);
INSERT INTO "metrics" VALUES('val_top1',0.97,1700000180000,'0dd195cdbdf44df28d443a503d347a56',3,0);
INSERT INTO "metrics" VALUES('val_top1',0.4,1700000060000,'5372d058680a421995c8e593c42d6c4c',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.8,1700000120000,'5372d058680a421995c8e593c42d6c4c',2,0);
INSERT INTO "metrics" VALUES('val_top1',0.95,1700000180000,'5372d058680a421995c8e593c42d6c4c',3,0);
INSERT INTO "metrics" VALUES('val_top1',0.965,1700000240000,'5372d058680a421995c8e593c42d6c4c',4,0);
INSERT INTO "metrics" VALUES('val_top1',0.3,1700000060000,'c9f00fe80bc64cc9a054ce3219d49d8f',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.7,1700000120000,'c9f00fe80bc64cc9a054ce3219d49d8f',2,0);
INSERT INTO "metrics" VALUES('val_top1',0.9,1700000180000,'c9f00fe80bc64cc9a054ce3219d49d8f',3,0);
INSERT INTO "metrics" VALUES('val_top1',0.96,1700000240000,'c9f00fe80bc64cc9a054ce3219d49d8f',4,0);
INSERT INTO "metrics" VALUES('val_top1',0.2,1700000060000,'d9ebb9b322b24106ad873c30390e99d0',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.3,1700000120000,'d9ebb9b322b24106ad873c30390e99d0',2,0);
INSERT INTO "metrics" VALUES('val_top1',0.4,1700000180000,'d9ebb9b322b24106ad873c30390e99d0',3,0);
INSERT INTO "metrics" VALUES('val_top1',0.2,1700000060000,'61fff5bc25b84433ae9a066b0b7f043f',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.2,1700000060000,'51480d63c1d645279ea4f9ec20605d2f',1,0);
INSERT INTO "metrics" VALUES('val_top1',0.0,1700000120000,'51480d63c1d645279ea4f9ec20605d2f',2,1);
INSERT INTO "metrics" VALUES('val_top1',0.97,1700000060000,'59e04416358b48fba6d8f04724194ae3',1,0);
CREATE TABLE "params" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000) NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "params" VALUES('optim/lr','0.1','0dd195cdbdf44df28d443a503d347a56');
INSERT INTO "params" VALUES('batch','32','0dd195cdbdf44df28d443a503d347a56');
INSERT INTO "params" VALUES('optimizer','SGD','0dd195cdbdf44df28d443a503d347a56');
INSERT INTO "params" VALUES('optim/lr','0.2','5372d058680a421995c8e593c42d6c4c');
INSERT INTO "params" VALUES('batch','64','5372d058680a421995c8e593c42d6c4c');
INSERT INTO "params" VALUES('optimizer','SGD','5372d058680a421995c8e593c42d6c4c');
INSERT INTO "params" VALUES('optim/lr','0.4','c9f00fe80bc64cc9a054ce3219d49d8f');
INSERT INTO "params" VALUES('batch','128','c9f00fe80bc64cc9a054ce3219d49d8f');
INSERT INTO "params" VALUES('optimizer','SGD','c9f00fe80bc64cc9a054ce3219d49d8f');
INSERT INTO "params" VALUES('optim/lr','0.01','d9ebb9b322b24106ad873c30390e99d0');
INSERT INTO "params" VALUES('batch','32','d9ebb9b322b24106ad873c30390e99d0');
INSERT INTO "params" VALUES('optimizer','SGD','d9ebb9b322b24106ad873c30390e99d0');
INSERT INTO "params" VALUES('optim/lr','0.3','61fff5bc25b84433ae9a066b0b7f043f');
INSERT INTO "params" VALUES('batch','32','61fff5bc25b84433ae9a066b0b7f043f');
INSERT INTO "params" VALUES('optimizer','SGD','61fff5bc25b84433ae9a066b0b7f043f');
INSERT INTO "params" VALUES('optim/lr','9.0','51480d63c1d645279ea4f9ec20605d2f');
INSERT INTO "params" VALUES('batch','64','51480d63c1d645279ea4f9ec20605d2f');
INSERT INTO "params" VALUES('optimizer','SGD','51480d63c1d645279ea4f9ec20605d2f');
INSERT INTO "params" VALUES('optim/lr','0.1','59e04416358b48fba6d8f04724194ae3');
INSERT INTO "params" VALUES('batch','64','59e04416358b48fba6d8f04724194ae3');
INSERT INTO "params" VALUES('optimizer','SGD','59e04416358b48fba6d8f04724194ae3');
CREATE TABLE "runs" (
	run_uuid VARCHAR(32) NOT NULL, 
	name VARCHAR(250), 
	source_type VARCHAR(20), 
	source_name VARCHAR(500), 
	entry_point_name VARCHAR(50), 
	user_id VARCHAR(256), 
	status VARCHAR(9), 
	start_time BIGINT, 
	end_time BIGINT, 
	source_version VARCHAR(50), 
	lifecycle_stage VARCHAR(20), 
	artifact_uri VARCHAR(200), 
	experiment_id INTEGER, deleted_time BIGINT, 
	CONSTRAINT run_pk PRIMARY KEY (run_uuid), 
	CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')), 
	CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id), 
	CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO "runs" VALUES('0dd195cdbdf44df28d443a503d347a56','run 0','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000180000,'','active','/data/mlruns/1/0dd195cdbdf44df28d443a503d347a56/artifacts',1,NULL);
INSERT INTO "runs" VALUES('5372d058680a421995c8e593c42d6c4c','run 1','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000240000,'','active','/data/mlruns/1/5372d058680a421995c8e593c42d6c4c/artifacts',1,NULL);
INSERT INTO "runs" VALUES('c9f00fe80bc64cc9a054ce3219d49d8f','run 2','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000240000,'','active','/data/mlruns/1/c9f00fe80bc64cc9a054ce3219d49d8f/artifacts',1,NULL);
INSERT INTO "runs" VALUES('d9ebb9b322b24106ad873c30390e99d0','run 3','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000180000,'','active','/data/mlruns/1/d9ebb9b322b24106ad873c30390e99d0/artifacts',1,NULL);
INSERT INTO "runs" VALUES('61fff5bc25b84433ae9a066b0b7f043f','run 4','UNKNOWN','','','unknown','FAILED',1700000000000,1700000060000,'','active','/data/mlruns/1/61fff5bc25b84433ae9a066b0b7f043f/artifacts',1,NULL);
INSERT INTO "runs" VALUES('51480d63c1d645279ea4f9ec20605d2f','run 5','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000120000,'','active','/data/mlruns/1/51480d63c1d645279ea4f9ec20605d2f/artifacts',1,NULL);
INSERT INTO "runs" VALUES('59e04416358b48fba6d8f04724194ae3','run 6','UNKNOWN','','','unknown','FINISHED',1700000000000,1700000060000,'','deleted','/data/mlruns/1/59e04416358b48fba6d8f04724194ae3/artifacts',1,1795335397987);
CREATE TABLE "tags" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000), 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "tags" VALUES('mlflow.runName','run 0','0dd195cdbdf44df28d443a503d347a56');
INSERT INTO "tags" VALUES('mlflow.runName','run 1','5372d058680a421995c8e593c42d6c4c');
INSERT INTO "tags" VALUES('mlflow.runName','run 2','c9f00fe80bc64cc9a054ce3219d49d8f');
INSERT INTO "tags" VALUES('mlflow.runName','run 3','d9ebb9b322b24106ad873c30390e99d0');
INSERT INTO "tags" VALUES('mlflow.runName','run 4','61fff5bc25b84433ae9a066b0b7f043f');
INSERT INTO "tags" VALUES('mlflow.runName','run 5','51480d63c1d645279ea4f9ec20605d2f');
INSERT INTO "tags" VALUES('mlflow.runName','run 6','59e04416358b48fba6d8f04724194ae3');
