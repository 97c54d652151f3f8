import datafusion, inspect
print(datafusion.__version__)
from datafusion import SessionContext
print([x for x in dir(SessionContext) if 'regis' in x or 'from' in x])
print(inspect.getsource(SessionContext.register_table)[:1500])
try: print(inspect.getsource(SessionContext.register_table_provider)[:1500])
except Exception as e: print(e)
print(inspect.getsource(SessionContext.register_dataset)[:800])
